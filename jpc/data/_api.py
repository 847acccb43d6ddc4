from ._augment import augment as augment
from ._fetch import fetch as fetch, where as where
from ._load import Dataset as Dataset, load as load
