"""Ascend's simulated runtime in both shapes: launches, streams, events, captures."""

from pathlib import Path
from textwrap import dedent

import hetero_simulator
import pytest
from ascend import SHAPES, Ascend
from simulated import MIB

from tests.programs import next_line


@pytest.fixture(params=SHAPES)
def npus(tmp_path: Path, request: pytest.FixtureRequest) -> Ascend:
    return Ascend(tmp_path, request.param)


def started(program: str) -> str:
    """Return a program that begins on the first card, with a kernel and a stream."""
    return "acl.aclrtSetDevice(0)\nk, s = kernel(), stream()\n" + dedent(program)


def test_events_tell_the_time_of_the_card(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        start, middle, end, untimed = event(), event(), event(), event(1)
        elapsed = lambda *events: acl.code("aclrtEventElapsedTime", byref(c_float()), *events)
        state, busy = c_int(), c_int()
        unrecorded = elapsed(start, end)
        launch(k, 50_000, s)
        acl.aclrtRecordEvent(start, s)
        launch(k, 9998, s)
        acl.aclrtRecordEvent(middle, s)
        launch(k, 19998, s)
        acl.aclrtRecordEvent(end, s)
        acl.aclrtRecordEvent(untimed, s)
        acl.aclrtQueryEventStatus(end, byref(state))
        acl.aclrtStreamQuery(s, byref(busy))
        answers = [unrecorded, elapsed(start, end), state.value, busy.value]
        acl.aclrtSynchronizeEvent(end)
        acl.aclrtQueryEventStatus(end, byref(state))
        acl.aclrtStreamQuery(s, byref(busy))
        say(answers + [state.value, busy.value, elapsed(end, start), elapsed(start, untimed),
                    milliseconds(start, middle), milliseconds(middle, end)])
        """)
    )

    assert [107006, 107006, 0, 1, 1, 0, 107007, 107006] == answers[:8]
    assert [pytest.approx(10, abs=0.001), pytest.approx(20, abs=0.001)] == answers[8:]


def test_each_way_to_launch_takes_the_time_of_its_kernel(npus: Ascend) -> None:
    lengths_ms = npus.run(
        started("""
        stub, args, text = 77, c_uint(9998), b"spin"
        binary = c_uint64()
        rt.rtDevBinaryRegister(byref(Binary(0, 0, text, 4)), byref(binary))
        rt.rtFunctionRegister(binary, stub, b"stub", b"spin", 0)
        extended = (c_uint64 * 8)(ctypes.addressof(args))
        handle = c_uint64()
        acl.aclrtKernelArgsInit(k, byref(handle))
        acl.aclrtKernelArgsAppend(handle, byref(args), 4, None)
        ways = [
            lambda: acl.aclrtLaunchKernel(k, 1, byref(args), 4, s),
            lambda: acl.aclrtLaunchKernelV2(k, 1, byref(args), 4, None, s),
            lambda: acl.aclrtLaunchKernelWithConfig(k, 1, s, None, handle, None),
            lambda: acl.aclrtLaunchKernelWithHostArgs(k, 1, s, None, byref(args), 4, None, 0),
            lambda: rt.rtKernelLaunch(stub, 1, byref(args), 4, None, s),
            lambda: rt.rtKernelLaunchWithFlag(stub, 1, extended, None, s, 0),
            lambda: rt.rtKernelLaunchWithFlagV2(stub, 1, extended, None, s, 0, None),
            lambda: rt.rtKernelLaunchWithHandleV2(binary, 0, 1, extended, None, s, None),
            lambda: rt.rtLaunchKernelByFuncHandleV3(k, 1, extended, s, None),
            lambda: rt.rtsLaunchKernelWithDevArgs(k, 1, s, None, byref(args), 4, None),
            lambda: rt.rtsLaunchKernelWithConfig(k, 1, s, None, handle, None),
        ]
        lengths = [took(s, way) for way in ways]
        say(lengths + [rt.code("rtKernelLaunch", 78, 1, byref(args), 4, None, s)])
        """)
    )

    assert 507027 == lengths_ms.pop()
    assert [pytest.approx(10, abs=0.01)] * 11 == lengths_ms


def test_tasks_without_a_kernel_take_what_their_family_does(npus: Ascend) -> None:
    lengths_ms = npus.run(
        started("""
        say([took(s, lambda: rt.rtFftsPlusTaskLaunch(None, s)),
             took(s, lambda: rt.rtStarsTaskLaunch(None, 0, s)),
             took(s, lambda: rt.rtCmoTaskLaunch(None, s, 0))])
        """)
    )

    assert [pytest.approx(40, abs=0.01), *[pytest.approx(0, abs=0.01)] * 2] == lengths_ms


def test_two_processes_that_compute_share_the_card_s_time(npus: Ascend, tmp_path: Path) -> None:
    """By a clock of their own. Each change between them costs 0.15 ms of 2.09 ms."""
    program = started("""
        start = time.monotonic()
        launch(k, 1_000_000, s)
        acl.aclrtSynchronizeStream(s)
        say(time.monotonic() - start)
        """)
    clock = {"VIRTUAL_CLOCK": f"2:{tmp_path}/clock", "LD_PRELOAD": str(hetero_simulator.clock())}
    both = [npus.start(program, **clock) for _ in range(2)]

    for process in both:
        out, errors = process.communicate(timeout=60)
        assert "" == errors
        assert 2 * (1 + 0.15 / 2.09) == pytest.approx(float(out), abs=0.02)


def test_dcmi_shows_a_card_that_computes_as_busy(npus: Ascend) -> None:
    with npus.standing(started("launch(k, 60_000_000, s)")):
        percent = npus.run("""
            busy = c_uint()
            time.sleep(0.3)
            dcmi.dcmi_get_device_utilization_rate(0, 0, 2, byref(busy))
            say(busy.value)
            """)

    assert 99 <= percent


def test_a_wait_ends_by_its_time_out_and_the_work_goes_on(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        launch(k, 400_000, s)
        codes = [acl.code("aclrtSynchronizeStreamWithTimeout", s, c_int(20)),
                 acl.code("aclrtSynchronizeDeviceWithTimeout", c_int(20)),
                 acl.code("aclrtSynchronizeStreamWithTimeout", s, c_int(-1)),
                 acl.code("aclrtSynchronizeStreamWithTimeout", s, c_int(-2))]
        say(codes)
        """)
    )

    assert [507046, 507046, 0, 107000] == answers


def test_a_stream_of_another_context_is_refused(npus: Ascend) -> None:
    codes = npus.run(
        started("""
        acl.made("aclrtCreateContext", 0)  # which is current now
        say([launch(k, 1, s), acl.code("aclrtSynchronizeStream", s), launch(k, 1, 0)])
        """)
    )

    assert [107003, 107003, 0] == codes


def test_a_device_has_1984_streams(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        for _ in range(1983):
            stream()
        refused = acl.code("aclrtCreateStream", byref(c_uint64()))
        acl.aclrtDestroyStream(s)
        say([refused, acl.code("aclrtCreateStream", byref(c_uint64()))])
        """)
    )

    assert [207008, 0] == answers


def test_a_stream_waits_for_a_notify_and_for_a_word(npus: Ascend) -> None:
    """What stands behind them has not begun, and other streams go on."""
    answers = npus.run(
        started("""
        other, notify, start, end, word = stream(), c_uint64(), event(), event(), malloc(8)
        acl.aclrtCreateNotify(byref(notify), 0)
        acl.aclrtMemset(word, 8, 0, 8)
        state, answers = c_int(), []
        def query(e):
            acl.aclrtQueryEventStatus(e, byref(state))
            return state.value
        for hold, let in (
            (lambda: acl.aclrtWaitAndResetNotify(notify, s, 0),
             lambda: acl.aclrtRecordNotify(notify, other)),
            (lambda: acl.aclrtValueWait(word, 5, 1, s),
             lambda: acl.aclrtValueWrite(word, 5, 0, other)),
        ):
            hold()
            launch(k, 5000, s)
            acl.aclrtRecordEvent(end, s)
            launch(k, 1000, other)
            acl.aclrtSynchronizeStream(other)
            late = acl.code("aclrtSynchronizeStreamWithTimeout", s, c_int(30))
            answers += [late, query(end)]
            let()
            acl.aclrtSynchronizeStream(s)
            answers.append(query(end))
        say(answers)
        """)
    )

    assert [507046, 0, 1] * 2 == answers


def test_a_host_function_occupies_its_stream_and_runs_when_the_card_gets_there(
    npus: Ascend,
) -> None:
    answers = npus.run(
        started("""
        seen, end, state = [], event(), c_int()
        begun, go_on = threading.Event(), threading.Event()
        @ctypes.CFUNCTYPE(None, c_void_p)
        def function(argument):
            seen.append(argument)
            begun.set()
            go_on.wait(10)
        launch(k, 50_000, s)
        acl.aclrtLaunchHostFunc(s, function, 42)
        acl.aclrtRecordEvent(end, s)
        before = list(seen)
        begun.wait(10)
        acl.aclrtQueryEventStatus(end, byref(state))
        held = state.value
        go_on.set()
        acl.aclrtSynchronizeStream(s)
        acl.aclrtQueryEventStatus(end, byref(state))
        say([before, seen, held, state.value])
        """)
    )

    assert [[], [42], 0, 1] == answers


def test_a_callback_is_run_by_the_program_when_it_asks_and_holds_its_stream(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        seen = []
        @ctypes.CFUNCTYPE(None, c_void_p)
        def function(argument):
            seen.append(argument)
        early = acl.code("aclrtProcessReport", c_int(10))
        acl.aclrtSubscribeReport(threading.get_native_id(), s)
        acl.aclrtLaunchCallback(function, 42, 1, s)
        held = acl.code("aclrtSynchronizeStreamWithTimeout", s, c_int(50))
        before = list(seen)
        acl.aclrtProcessReport(c_int(-1))
        acl.aclrtSynchronizeStream(s)
        acl.aclrtLaunchCallback(function, 43, 0, s)
        acl.aclrtSynchronizeStream(s)
        acl.aclrtProcessReport(c_int(1000))
        say([early, held, before, seen])
        """)
    )

    assert [100036, 507046, [], [42, 43]] == answers


def test_a_captured_model_runs_at_its_execute_as_one_task(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        status, model = c_int(), c_uint64()
        def body():
            for _ in range(20):
                launch(k, 998, s)
            acl.aclmdlRICaptureGetInfo(s, byref(status), byref(model))
        instance = captured(s, 1, body)
        answers = [status.value, model.value == instance]
        acl.aclmdlRICaptureGetInfo(s, byref(status), byref(model))
        answers.append(status.value)
        for execute in (lambda: acl.aclmdlRIExecuteAsync(instance, s),
                        lambda: rt.rtModelExecute(instance, s, 0),
                        lambda: rt.rtsModelExecuteAsync(instance, s)):
            answers.append(took(s, execute))
        acl.aclmdlRIDestroy(instance)
        say(answers + [acl.code("aclmdlRIExecuteAsync", instance, s)])
        """)
    )

    assert [1, True, 0] == answers[:3]
    assert [pytest.approx(20, abs=0.01)] * 3 == answers[3:6]
    assert 107017 == answers[6]


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_wait_or_query_in_a_capture_fails_and_spoils_it(npus: Ascend, mode: int) -> None:
    """Relaxed captures mind those of the captured stream alone."""
    codes = npus.run(
        started(f"""
        other, e, state = stream(), event(), c_int()
        acl.aclrtRecordEvent(e, other)
        answers = []
        for call in (("aclrtStreamQuery", s, byref(state)), ("aclrtSynchronizeStream", s),
                     ("aclrtQueryEventStatus", e, byref(state)), ("aclrtSynchronizeDevice",),
                     ("aclrtSynchronizeStream", other)):
            acl.aclmdlRICaptureBegin(s, {mode})
            code = acl.code(*call)
            answers.append([code, acl.code("aclmdlRICaptureEnd", s, byref(c_uint64()))])
        say(answers)
        """)
    )
    of_others = [0, 0] if mode == 2 else [107030, 107025]

    assert [[107027, 107025]] * 2 + [of_others] * 3 == codes


def test_a_capture_ends_with_its_stream_and_an_event_s_time_with_its_device(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        e, state, other = event(), c_int(), stream()
        launch(k, 200_000, other)
        acl.aclrtRecordEvent(e, other)
        acl.aclmdlRICaptureBegin(s, 0)
        acl.aclrtDestroyStream(s)
        acl.aclrtSynchronizeDevice()
        acl.aclrtResetDevice(0)
        acl.aclrtSetDevice(0)
        launch(k, 200_000, 0)
        acl.aclrtQueryEventStatus(e, byref(state))
        say([state.value, acl.code("aclrtEventElapsedTime", byref(c_float()), e, e)])
        """)
    )

    assert [1, 107006] == answers


def test_only_a_global_capture_minds_other_threads_unless_they_relax(npus: Ascend) -> None:
    codes = npus.run(
        started("""
        answers = []
        def look(mode):
            acl.aclrtSetDevice(0)
            acl.aclmdlRICaptureThreadExchangeMode(byref(c_int(mode)))
            answers.append(acl.code("aclrtSynchronizeDevice"))
        for capture, thread in ((0, 0), (1, 0), (0, 2)):
            acl.aclmdlRICaptureBegin(s, capture)
            looking = threading.Thread(target=look, args=(thread,))
            looking.start()
            looking.join()
            acl.code("aclmdlRICaptureEnd", s, byref(c_uint64()))
        say(answers)
        """)
    )

    assert [107030, 0, 0] == codes


def test_a_stream_that_waits_for_a_captured_event_is_captured_too(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        other, fork, join, status = stream(), event(), event(), c_int()
        start, end = event(), event()
        def body():
            acl.aclrtRecordEvent(fork, s)
            acl.aclrtStreamWaitEvent(other, fork)
            launch(k, 4998, other)
            acl.aclmdlRICaptureGetInfo(other, byref(status), byref(c_uint64()))
            answers.append(acl.code("aclmdlRICaptureEnd", other, byref(c_uint64())))
            answers.append(acl.code("aclrtQueryEventStatus", fork, byref(c_int())))
        answers = []
        acl.aclmdlRICaptureBegin(s, 1)
        body()
        spoilt = acl.code("aclmdlRICaptureEnd", s, byref(c_uint64()))
        say([status.value, answers, spoilt, acl.code("aclmdlRICaptureBegin", 0, 1),
             acl.code("aclmdlRICaptureEnd", s, byref(c_uint64()))])
        """)
    )

    assert [1, [107036, 107028], 107025, 107000, 107029] == answers


def test_tasks_of_a_group_get_other_arguments_and_the_instance_stays(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        group = c_uint64()
        def body():
            acl.aclmdlRICaptureTaskGrpBegin(s)
            launch(k, 998, s)
            launch(k, 998, s)
            acl.aclmdlRICaptureTaskGrpEnd(s, byref(group))
            launch(k, 998, s)
        model = captured(s, 1, body)
        def length():
            return took(s, lambda: acl.aclmdlRIExecuteAsync(model, s))
        before, update = length(), stream()
        acl.aclmdlRICaptureTaskUpdateBegin(update, group)
        launch(k, 4998, update)
        launch(k, 3998, update)
        acl.aclmdlRICaptureTaskUpdateEnd(update)
        after = length()
        acl.aclmdlRICaptureTaskUpdateBegin(update, group)
        launch(k, 1, update)
        say([before, after, acl.code("aclmdlRICaptureTaskUpdateEnd", update)])
        """)
    )

    assert [pytest.approx(3, abs=0.01), pytest.approx(10, abs=0.01), 107033] == answers


def test_a_model_has_its_weights_on_the_card_and_takes_its_kernels_time(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        text = b"ffts spin ffts".ljust(8 * MIB, b"\\0")
        model = c_uint()
        acl.aclmdlLoadFromMem(text, len(text), byref(model))
        answers = [used(), info()[0] + used() == GIB]
        answers.append(took(s, lambda: acl.aclmdlExecuteAsync(model.value, None, None, s)))
        acl.aclmdlExecute(model.value, None, None)
        acl.aclmdlUnload(model.value)
        say(answers + [used(), acl.code("aclmdlExecute", model.value, None, None),
                       acl.code("aclmdlLoadFromMem", text, GIB + 1, byref(model))])
        """)
    )

    assert [8 * MIB, True] == answers[:2]
    assert 80 == pytest.approx(answers[2], abs=0.01)
    assert [0, 100011, 207001] == answers[3:]


def test_an_operator_takes_the_time_of_the_kernel_of_its_name(npus: Ascend) -> None:
    lengths_ms = npus.run(
        started("""
        operators = Library("libacl_op_compiler.so")
        def execute():
            operators.aclopCompileAndExecute(
                b"ffts", c_int(0), None, None, c_int(0), None, None, None, 0, 0, None, s)
        say([took(s, execute), took(s, execute)])
        """)
    )

    assert [pytest.approx(40, abs=0.01)] * 2 == lengths_ms


def test_a_copy_carries_its_bytes_and_takes_the_memory_s_time(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        device = malloc(8 * MIB)
        text, back = create_string_buffer(b"carried"), create_string_buffer(8)
        acl.aclrtMemcpy(device, 8, text, 8, 1)
        acl.aclrtMemcpyAsync(device + 64, 8, device, 8, 3, s)
        acl.aclrtSynchronizeStream(s)
        acl.aclrtMemcpy(back, 8, device + 64, 8, 2)
        say([back.value.decode(), acl.code("aclrtMemcpy", device, 7, text, 8, 1),
             took(s, lambda: acl.aclrtMemsetAsync(device, 8 * MIB, 0, 5_000_000, s))])
        """)
    )

    assert ["carried", 107000] == answers[:2]
    assert 50 == pytest.approx(answers[2], abs=0.01)


def test_a_killed_process_leaves_no_work_behind(npus: Ascend) -> None:
    with npus.standing(started("launch(k, 60_000_000, s)")) as other:
        process = npus.start(
            started("""
            print("ready", flush=True)
            launch(k, 400_000, s)
            acl.aclrtSynchronizeStream(s)
            say("done")
            """)
        )
        next_line(process)
        other.kill()
        assert ('"done"\n', "") == process.communicate(timeout=20)
