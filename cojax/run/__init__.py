"""What a run is made of: settings → objects, and the command that trains."""
