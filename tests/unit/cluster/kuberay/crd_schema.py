"""A strict check of custom resources against the schemas in their CRDs, like that of an API server.

Differs from `kubectl apply --dry-run=server` in one thing: CEL rules (`x-kubernetes-validations`) are not run. Those of
KubeRay concern updates and fields that these manifests do not use.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

STRUCTURE = ("allOf", "anyOf", "oneOf")
# Annotations for the API server that a validator does not need.
IGNORED = ("default", "description", "format", "nullable")


def crd_errors(folder: Path, resource: dict[str, Any]) -> list[str]:
    """Errors of `resource` by the CRDs in `folder`, as `path: message`."""
    validator = _validators(folder).get((resource["apiVersion"], resource["kind"]))
    if validator is None:
        return [f"no CRD for {resource['apiVersion']} {resource['kind']}"]
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in validator.iter_errors(resource)]


_CACHE: dict[Path, dict[tuple[str, str], Any]] = {}


def _validators(folder: Path) -> dict[tuple[str, str], Any]:
    if folder not in _CACHE:
        _CACHE[folder] = dict(_read(folder))
    return _CACHE[folder]


def _read(folder: Path) -> Iterator[tuple[tuple[str, str], Any]]:
    checker = jsonschema.validators.extend(
        jsonschema.Draft202012Validator, {"x-kubernetes-list-map-keys": _keys_are_unique}
    )
    for file in folder.glob("*.yaml"):
        crd = yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for version in crd["spec"]["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
            key = (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"])
            yield key, checker(schema)


def _strict(schema: Any) -> Any:
    """A JSON schema for the API server's rules of `schema`: unknown fields are errors."""
    if not isinstance(schema, dict):
        return schema
    strict: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties":
            strict[name] = {field: _strict(of) for field, of in value.items()}
        elif name in STRUCTURE:
            strict[name] = [_strict(of) for of in value]
        elif name in ("items", "additionalProperties", "not"):
            strict[name] = _strict(value)
        elif name not in IGNORED:
            strict[name] = value
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
        strict.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.get("nullable") and "type" in strict:
        strict["type"] = [strict["type"], "null"]
    # The API server fills in defaults before it checks required fields.
    filled = [f for f in strict.get("required", []) if "default" not in schema.get("properties", {}).get(f, {})]
    if "required" in strict:
        strict["required"] = filled
    loose = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
    if "properties" in strict and "additionalProperties" not in strict and not loose:
        strict["additionalProperties"] = False
    return strict


def _keys_are_unique(_: Any, keys: list[str], items: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """In a list that is a map by some of its fields, each key occurs once."""
    if not isinstance(items, list):
        return
    properties = schema.get("items", {}).get("properties", {})
    seen = set()
    for item in items:
        key = tuple(item.get(k, properties.get(k, {}).get("default")) for k in keys)
        if key in seen:
            yield jsonschema.ValidationError(f"{dict(zip(keys, key, strict=True))} is given twice")
        seen.add(key)
