"""A function of a notebook as a generator."""

from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.function import FunctionGenerator


def test_a_function_reads_the_system_prompt_before_its_prompt() -> None:
    prompts: list[str] = []

    def write(prompt: str) -> str:
        prompts.append(prompt)
        return "a note"

    requests = [
        GenerationRequest("zero_shot", "", "Write a note.", 0, system="You are a nurse."),
        GenerationRequest("zero_shot", "", "Write another note.", 1),
    ]
    answers = dict(FunctionGenerator("nurse", write).answer(requests))
    assert prompts == ["You are a nurse.\n\nWrite a note.", "Write another note."]
    assert all(isinstance(answer, Completion) and answer.text == "a note" for answer in answers.values())
