"""The packages that are built are the packages on disk, and the links point at them."""

import os
import tomllib

from tests.source_files import PACKAGES, ROOT, module_name, product_files

TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = TABLE["tool"]["setuptools"]


def test_every_package_on_disk_is_built() -> None:
    on_disk = {module_name(path) for path in product_files() if path.name == "__init__.py"}
    assert set(SETUPTOOLS["packages"]) == on_disk


def test_every_module_lies_in_a_package() -> None:
    lost = [path for path in product_files() if not (path.parent / "__init__.py").exists()]
    assert lost == []


def test_packages_are_built_from_the_folders_they_lie_in() -> None:
    wanted = {f"remat.{name}": name for name in PACKAGES} | {"remat": "remat"}
    assert SETUPTOOLS["package-dir"] == wanted


def test_the_links_for_static_tools_point_at_the_folders() -> None:
    links = {
        path.name: os.readlink(path) for path in (ROOT / "remat").iterdir() if path.is_symlink()
    }
    assert links == {name: f"../{name}" for name in PACKAGES}


def test_data_files_are_packaged() -> None:
    patterns = SETUPTOOLS["package-data"]["remat"]
    packaged = {path.name for pattern in patterns for path in (ROOT / "remat").glob(pattern)}
    data = {path.name for path in (ROOT / "remat").iterdir() if path.is_file()}
    assert {name for name in data if not name.endswith((".py", ".c", ".h", ".so"))} == packaged


def test_every_c_file_is_built() -> None:
    sources = {source for module in SETUPTOOLS["ext-modules"] for source in module["sources"]}
    headers = {header for module in SETUPTOOLS["ext-modules"] for header in module["depends"]}
    assert {f"remat/{path.name}" for path in (ROOT / "remat").glob("*.c")} == sources
    assert {f"remat/{path.name}" for path in (ROOT / "remat").glob("*.h")} == headers


def test_the_script_is_the_command_line() -> None:
    assert TABLE["project"]["scripts"] == {"remat": "remat.cli.main:main"}


def test_the_two_wheels_of_onnx_runtime_are_extras_only() -> None:
    project = TABLE["project"]
    assert not any("onnxruntime" in wanted for wanted in project["dependencies"])
    extras = project["optional-dependencies"]
    assert [wanted.split(">")[0] for wanted in extras["cpu"]] == ["onnxruntime"]
    assert [wanted.split(">")[0] for wanted in extras["gpu"]] == ["onnxruntime-gpu"]
