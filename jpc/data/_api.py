from ._augment import augment as augment
from ._fetch import fetch as fetch, where as where
from ._load import Dataset as Dataset, load as load, published_schema as published_schema
from ._own import DataError as DataError, NoTargetsError as NoTargetsError
from ._recognise import read_like as read_like
from ._schema import Schema as Schema, read_schema as read_schema
