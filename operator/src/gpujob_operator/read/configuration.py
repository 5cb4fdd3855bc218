"""The operator's configuration file: YAML with the fields of `Configuration` in camelCase."""

import yaml

from gpujob_api.codec import FieldError, decode, json_fields
from gpujob_operator.decide.configuration import Configuration


def configuration_from_text(text: str) -> Configuration:
    """Reads the file's text; what it leaves out has its default.

    Raises `FieldError` naming the field, also for one that there is not: a typo must not pass
    silently. Raises `yaml.YAMLError` for what is no YAML.
    """
    data = yaml.safe_load(text) or {}
    if not isinstance(data, dict):
        raise FieldError("configuration", f"must be an object; got {type(data).__name__}")
    configuration = decode(Configuration, data, "configuration")
    unknown = {str(name) for name in data} - set(json_fields(Configuration))
    if unknown:
        raise FieldError(f"configuration.{min(unknown)}", "is not a known field")
    return configuration
