# The public names and their homes, for type checkers and for `__init__.py`

from .errors import StallscopeError as StallscopeError
from .files import __version__ as __version__
from .hooks.training_step import stage as stage
from .run.load import load as load
from .run.record import instrumented as instrumented
from .run.record import record as record
from .run.result import Run as Run
from .targets.target import Target as Target
from .targets.target import simulated_step as simulated_step
from .targets.target import target as target
from .verbs.compare import Comparison as Comparison
from .verbs.compare import compare as compare
from .verbs.diagnose.diagnose import diagnose as diagnose
from .verbs.diagnose.result import Diagnosis as Diagnosis
from .verbs.experiments.experiments import experiments as experiments
from .verbs.experiments.result import Experiments as Experiments
from .verbs.flame.flame import flame as flame
from .verbs.flame.result import Flame as Flame
from .verbs.ladder.ladder import ladder as ladder
from .verbs.ladder.result import Ladder as Ladder
from .verbs.lines.lines import lines as lines
from .verbs.lines.result import Lines as Lines
from .verbs.orders.orders import orders as orders
from .verbs.orders.result import Orders as Orders
from .verbs.storage.layout_result import Layouts as Layouts
from .verbs.storage.layouts import layouts as layouts
from .verbs.storage.result import Storage as Storage
from .verbs.storage.storage import storage as storage
from .verbs.tune.result import Tuning as Tuning
from .verbs.tune.tune import tune as tune

def load_ipython_extension(shell: object) -> None: ...
