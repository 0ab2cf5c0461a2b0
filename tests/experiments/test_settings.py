"""What a configuration may not say, before anything of it is written down."""

import pytest

from experiments import desk
from experiments.settings import check


@pytest.mark.parametrize("setting", ["llm.base_url", "quality.base_url", "sglang.urls", "sglang.router"])
@pytest.mark.parametrize("address", ["http://me:s3cret@host/v1", "http://host/v1?key=s3cret"])
def test_an_address_holds_no_key_whether_it_is_used_or_not(setting, address):
    config = desk.get_config()
    config.update_from_flattened_dict({setting: address if setting != "sglang.urls" else f"http://a:1,{address}"})
    with pytest.raises(ValueError, match=f"{setting} holds credentials or a query") as caught:
        check(config)
    assert "s3cret" not in str(caught.value)


def test_plain_addresses_are_fine():
    config = desk.get_config()
    for setting in ("llm.base_url", "quality.base_url", "sglang.urls", "sglang.router"):
        config.update_from_flattened_dict({setting: "http://127.0.0.1:30000/v1"})
    check(config)
