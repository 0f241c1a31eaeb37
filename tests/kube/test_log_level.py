"""What services log is one word of the environment."""

import logging

import pytest

from hetero.kube.words.log_level import log_level
from hetero.model.errors import BadInput


def test_a_service_logs_as_its_variable_says() -> None:
    texts = ("debug", "info", "warning", "error")
    levels = [logging.getLevelName(log_level({"HETERO_LOG_LEVEL": text})) for text in texts]

    assert [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR] == levels
    assert "INFO" == log_level({})


def test_a_level_that_is_not_known_is_refused() -> None:
    with pytest.raises(BadInput, match="HETERO_LOG_LEVEL 'loud' is none of debug, info, warning"):
        log_level({"HETERO_LOG_LEVEL": "loud"})
