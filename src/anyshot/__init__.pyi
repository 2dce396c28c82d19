"""The public names of anyshot: type checkers, editors and `__init__.py` read them here."""

from anyshot.classify.bank import ClassBank as ClassBank
from anyshot.classify.classifier import FewShotClassifier as FewShotClassifier
from anyshot.classify.images import ImageClassifier as ImageClassifier
from anyshot.data.open import open_source as open_source
from anyshot.errors import BadInput as BadInput
from anyshot.errors import MissingFile as MissingFile
from anyshot.inspect.advice import advise as advise
from anyshot.inspect.corrections import apply_corrections as apply_corrections
from anyshot.inspect.unlabelled import rank_unlabelled as rank_unlabelled
from anyshot.measure.evaluate import evaluate as evaluate
from anyshot.measure.plan import Protocol as Protocol
from anyshot.measure.recalls import Recalls as Recalls
from anyshot.measure.recalls import read_recalls as read_recalls
from anyshot.measure.sensitivity import decompose as decompose
from anyshot.models.backbones import Backbone as Backbone
from anyshot.models.law import Head as Head
from anyshot.models.model import load_model as load_model
from anyshot.models.readouts import Readout as Readout
from anyshot.models.registry import BUILTIN as BUILTIN
from anyshot.models.registry import PACKAGE as PACKAGE  # BUILTIN as version 0.1 calls it
from anyshot.models.registry import Registry as Registry
from anyshot.models.registry import list_backbones as list_backbones
from anyshot.models.registry import list_heads as list_heads
from anyshot.models.registry import list_readouts as list_readouts
from anyshot.recipe import Recipe as Recipe
from anyshot.study.study import Study as Study
from anyshot.study.study import packed as packed

__version__: str
