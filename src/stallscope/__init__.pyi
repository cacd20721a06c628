# The public names and their homes: for type checkers, and for `__init__.py`, which reads them here

from stallscope.compare.compare import Comparison as Comparison
from stallscope.compare.compare import compare as compare
from stallscope.diagnose.diagnose import diagnose as diagnose
from stallscope.diagnose.result import Diagnosis as Diagnosis
from stallscope.errors import StallscopeError as StallscopeError
from stallscope.experiments.experiments import experiments as experiments
from stallscope.experiments.result import Experiments as Experiments
from stallscope.files import __version__ as __version__
from stallscope.flame.flame import flame as flame
from stallscope.flame.result import Flame as Flame
from stallscope.hooks.training_step import stage as stage
from stallscope.ladder.ladder import ladder as ladder
from stallscope.ladder.result import Ladder as Ladder
from stallscope.lines.lines import lines as lines
from stallscope.lines.result import Lines as Lines
from stallscope.load import load as load
from stallscope.orders.orders import orders as orders
from stallscope.orders.result import Orders as Orders
from stallscope.run.record import instrumented as instrumented
from stallscope.run.record import record as record
from stallscope.run.result import Run as Run
from stallscope.storage.layout_result import Layouts as Layouts
from stallscope.storage.layouts import layouts as layouts
from stallscope.storage.result import Storage as Storage
from stallscope.storage.storage import storage as storage
from stallscope.targets.target import Target as Target
from stallscope.targets.target import simulated_step as simulated_step
from stallscope.targets.target import target as target
from stallscope.tune.result import Tuning as Tuning
from stallscope.tune.tune import tune as tune

def load_ipython_extension(shell: object) -> None: ...
