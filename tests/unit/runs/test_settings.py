"""Configurations: every mistake is found before anything starts, and named."""

from pathlib import Path

import pytest

from sadih_dask.errors import ConfigError
from sadih_dask.model.methods.sadih import SADIH
from sadih_dask.model.parameters import ALL_PARAMETERS
from sadih_dask.runs.loading import describe, load
from sadih_dask.runs.settings import Settings

DIGITS = """
[run]
directory = "somewhere"
[source]
kind = "digits"
"""
FILES = """
[run]
directory = "somewhere"
[source]
features = "x.npy"
labels = ["y.npy", "z.npy"]
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.toml"
    path.write_text(DIGITS)
    return path


def refused(path: Path, *overrides: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, environment)
    return str(caught.value)


def test_defaults_are_the_estimators_own(written: Path) -> None:
    settings = load(written, (), {})
    assert settings.model.parameters == {}
    assert settings.run.keep == 5
    assert settings.cluster.kind == "threads"


def test_files_are_the_default_source_and_one_name_is_a_list(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(FILES)
    source = load(path, (), {}).source
    assert source.kind == "files"
    assert source.features == ("x.npy",)
    assert source.labels == ("y.npy", "z.npy")


def test_later_ones_win(written: Path) -> None:
    written.write_text(DIGITS + "[model]\nn_bits = 8\nanchors = 5\nalpha = 2")
    environment = {"SADIH__MODEL__N_BITS": "16", "SADIH__MODEL__ANCHORS": "6", "HOME": "/"}
    settings = load(written, ["model.n_bits=32"], environment)
    assert settings.model.parameters == {"n_bits": 32, "anchors": 6, "alpha": 2.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [("none", None), ("7", 7)],
)
def test_words_and_numbers_on_the_command_line(written: Path, text: str, value: object) -> None:
    settings = load(
        written, [f"model.anchors={text}", "run.directory=a b", "model.n_init=auto"], {}
    )
    assert settings.model.parameters == {"anchors": value, "n_init": "auto"}
    assert settings.run.directory == "a b"


def test_every_parameter_of_the_estimator_can_be_set() -> None:
    policies = {"method", "search", "refresh", "min_gain"}
    fields = set(Settings.model_fields["model"].annotation.model_fields) - policies
    assert fields == set(ALL_PARAMETERS) >= set(SADIH().get_params())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.n_bitz=8", "did you mean n_bits?"),
        ("modell.n_bits=8", "did you mean model?"),
        ("source.rows=8", "'rows' is not a setting"),
        ("model.n_bits=0", "greater than or equal to 1"),
        ("evaluation.bits=[8, 100000]", "less than or equal to 2048"),
        ("model.n_bits=many", "valid integer"),
        ("model.n_bits=8.5", "valid integer"),
        ("model.encoder=rigde", "'ridge'"),
        ("model.alpha=-1", "greater than or equal to 0"),
        ("model.alpha=nan", "finite"),
        ("model.search.folds=5", "nothing to choose from"),
        ("model.search.loss=['l3']", "it should be 'l21' or 'l1'"),
        ("model.search.alpha=[]", "nothing to choose from"),
        ("model.n_init=0", "greater than or equal to 1"),
        ("cluster.workres=2", "did you mean workers?"),
        ("cluster.workers=0", "greater than or equal to 1"),
        ("cluster.memory_limit=much", "'much' is no number of bytes"),
        ("cluster.options.queue=long", "'threads' has no further options"),
        ("source.kind=fils", "'digits'"),
        ("gate.map_min=1.5", "less than or equal to 1"),
        ("cluster.kind=scheduler", "without an address"),
        ("run.keep=0", "greater than or equal to 1"),
        ("run.directory=", "directory"),
        ("model=3", "model"),
        ("run.directory.name=3", "is a value, not a section"),
        ("n_bits", "section.key=value"),
    ],
)
def test_mistakes_on_the_command_line_are_named(written: Path, override: str, said: str) -> None:
    message = refused(written, override)
    assert said in message
    assert f"--set {override.partition('=')[0]}" in message


def test_the_origin_of_a_mistake_is_named(written: Path) -> None:
    assert "--set model.n_bits" in refused(written, "model.n_bits=0")
    message = refused(written, SADIH__MODEL__N_BITS="0")
    assert "environment variable SADIH__MODEL__N_BITS" in message
    written.write_text(DIGITS + "[model]\nn_bits = 0")
    assert str(written) in refused(written)
    assert "model.n_bits = 0" in refused(written)


def test_plain_tcp_is_refused_in_words_of_a_configuration(written: Path) -> None:
    message = refused(written, "cluster.kind=scheduler", "cluster.address=tcp://192.0.2.1:8786")
    assert "plain TCP to '192.0.2.1' is refused" in message
    assert "(ca_file, cert_file and key_file)" in message
    assert "allow_plain_tcp = true" in message


def test_what_is_missing_is_named(written: Path) -> None:
    assert "source.rows is missing (rows of the database)" in refused(
        written, "source.kind=synthetic"
    )


def test_all_mistakes_are_named_at_once(written: Path) -> None:
    message = refused(written, "model.n_bitz=8", "gate.map_mim=1")
    assert "n_bits" in message
    assert "map_min" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run", "not valid TOML"),
        ("", "run is missing"),
        ("[run]\ndirectory = 'x'", "source is missing"),
        ("\x00", "not valid TOML"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    message = refused(path)
    assert said in message
    assert str(path) in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "nothing.toml")
    assert "is a folder" in refused(tmp_path)
    (tmp_path / "long.toml").write_bytes(b"#" * (1 << 21))
    assert "more than" in refused(tmp_path / "long.toml")


def test_a_gate_needs_queries(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(FILES)
    assert "[gate] needs queries" in refused(path, "gate.map_min=0.5")
    assert "[model] needs queries" in refused(path, "model.refresh=when-better")
    assert load(path, ["gate.map_min=0.5", "source.hold_out=0.1"], {}).gate.is_set
    both = ("source.hold_out=0.1", "source.queries.features=q.npy")
    assert "exclude each other" in refused(path, *both)


def test_all_settings_are_described() -> None:
    text = "\n".join(describe())
    for section, field in Settings.model_fields.items():
        assert f"[{section}]" in text
        assert field is not None
    assert "n_bits" in text
    assert "[default: 5]" in text
    assert all("#" in line for line in text.splitlines() if line and not line.startswith("["))


@pytest.mark.parametrize("path", sorted(Path("pipelines").glob("*.toml")), ids=lambda p: p.name)
def test_the_configurations_of_the_project(path: Path) -> None:
    assert load(path, (), {}).run.directory == f"runs/{path.stem}"


def test_there_are_configurations() -> None:
    assert len(list(Path("pipelines").glob("*.toml"))) >= 5
