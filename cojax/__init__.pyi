from cojax.api.process import RunFailed as RunFailed
from cojax.api.training import OpenRun as OpenRun
from cojax.api.training import Records as Records
from cojax.api.training import Training as Training
from cojax.api.training import evaluate as evaluate
from cojax.api.training import open_run as open_run
from cojax.api.training import steps as steps
from cojax.api.training import train as train
from cojax.policy.pretrained import load as load
from cojax.worlds import load as _load_environment

load_environment = _load_environment

__version__: str
__all__ = ["OpenRun", "Records", "RunFailed", "Training", "evaluate", "load", "open_run", "steps", "train"]
