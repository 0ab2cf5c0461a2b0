"""What makes XLA compile small programs for a CPU in half the time."""

# Its older code generator. Results differ in their last bits from those of the newer one, so that what is compared bit
# for bit must be compiled by one of them alone.
QUICK = "--xla_cpu_use_fusion_emitters=false"
