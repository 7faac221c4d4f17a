import inspect
import pkgutil
import subprocess
import sys

import pytest

from fedaccord.errors import ConfigError, UntrustedError
from fedaccord.extensions import trusting
from fedaccord.models.catalogue import build
from fedaccord.models.registry import MODELS, check_model

KNOWN = ["linear", "mlp", "sphere-mlp", "lenet5", "cnn", "cnn1d", "resnet8", "resnet18", "resnet34"]


class TestRegistry:
    def test_it_is_known_without_torch(self):
        script = (
            "import sys; from fedaccord.models.registry import check_model; check_model('mlp', {'hidden': [8]}); "
            "sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0

    def test_it_lists_every_model(self):
        assert list(MODELS) == KNOWN
        for name, entry in MODELS.items():
            assert entry.name == name
            assert entry.summary
            assert "\n" not in entry.summary

    @pytest.mark.parametrize("entry", MODELS.values(), ids=lambda entry: entry.name)
    def test_its_settings_are_the_builder_s_own_defaults(self, entry):
        signature = inspect.signature(pkgutil.resolve_name(entry.builder)).parameters.values()
        given = {p.name: p.default for p in signature if p.default is not inspect.Parameter.empty}
        defaults = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        assert entry.settings == defaults

    @pytest.mark.parametrize("hidden", [[128], [64, 32], (5,)])
    def test_widths_are_accepted(self, hidden):
        check_model("mlp", {"hidden": hidden})

    @pytest.mark.parametrize("hidden", [[], [0], [-3], [1.5], [True], ["8"], 128, "128", None])
    def test_other_widths_are_refused(self, hidden):
        with pytest.raises(ConfigError) as caught:
            check_model("mlp", {"hidden": hidden})
        assert str(caught.value) == (
            f"the setting 'hidden' of model 'mlp' is {hidden!r}, "
            "but must be a non-empty list of positive whole numbers such as [128]"
        )

    @pytest.mark.parametrize(
        ("name", "settings", "message"),
        [
            ("lenet", {}, "unknown model 'lenet': did you mean 'lenet5'?"),
            ("vit", {}, f"unknown model 'vit': known: {', '.join(KNOWN)}"),
            ("mlp", {"hiden": [3]}, "the model 'mlp' has no setting 'hiden': did you mean 'hidden'?"),
            ("linear", {"hidden": [3]}, "the model 'linear' has no setting 'hidden': none is known"),
            (
                "resnet8",
                {"norm": "layer"},
                "the setting 'norm' of model 'resnet8' is 'layer', but must be \"group\" or \"batch\"",
            ),
        ],
    )
    def test_unknown_names_are_told(self, name, settings, message):
        with pytest.raises(ConfigError) as caught:
            check_model(name, settings)
        assert str(caught.value) == message
        with pytest.raises(ConfigError):
            build(name, settings, (4,), classes=3, seed=0)

    def test_a_factory_is_checked_for_its_form_and_for_trust_only(self):
        with trusting(["no_such_place"]):
            check_model("no_such_place.models:mine", {"anything": object()})
        with pytest.raises(UntrustedError, match="allow it with --trust no_such_place"):
            check_model("no_such_place.models:mine", {})

    @pytest.mark.parametrize("name", [":", "a:", ":b", "a.b:c:d", "a..b:c", "a-b:c", "a/b.py:c", "a:b.c", "a: b"])
    def test_a_factory_of_another_form_is_refused(self, name):
        with pytest.raises(ConfigError) as caught:
            check_model(name, {})
        assert str(caught.value) == f"model.name: '{name}' is not of the form 'package.module:name'"
