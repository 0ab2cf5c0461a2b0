"""One evaluation of a policy: what it plays, and its scores."""
