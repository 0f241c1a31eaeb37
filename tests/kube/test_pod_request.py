"""What pods ask for, by annotations and resources."""

import tracemalloc
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.words.pod_request import Vocabulary, placement_chain
from hetero.kube.words.quota import Quotas
from hetero.kube.words.settings import Settings, load
from hetero.model import CORE, Ask, Enforcement, OnBypass, OnExcess, Policy, Priority, Selector
from hetero.model.errors import BadInput, NotFound
from hetero.model.rounding import portion
from hetero.model.units import GiB, MiB
from hetero.placement.placement_policy import CardKey, PlacementChain
from hetero.plugin.vendor import with_software_limiter
from hetero.registry.registry import Registry

#: Asked when this is imported: later this process may have threads, in which none can be forked.
VENDORS = Registry()
WORDS = Settings().vocabulary(VENDORS)


def pod(
    limits: Mapping[str, str | int],
    *,
    env: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a pod of one container with these annotations."""
    container = {
        "name": "main",
        "resources": {"limits": limits},
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
    }
    return {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "u",
            "annotations": dict(notes or {}),
        },
        "spec": {"containers": [container]},
    }


def asked(limits: dict[str, str], words: Vocabulary = WORDS, **rest: Any) -> Any:
    (asked_container,) = words.asked(read(Pod, pod(limits, **rest)))
    return asked_container


@pytest.mark.parametrize(
    ("vendor", "limits", "count", "ask"),
    [
        (
            "nvidia",
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"},
            2,
            Ask(memory=3000 * MiB, core=30),
        ),
        (
            "nvidia",
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
            1,
            Ask(memory_percent=50),
        ),
        (  # HAMi's ai-benchmark-2: the size goes before the percentage
            "nvidia",
            {
                "nvidia.com/gpu": "1",
                "nvidia.com/gpumem": "3000",
                "nvidia.com/gpumem-percentage": "50",
            },
            1,
            Ask(memory=3000 * MiB),
        ),
        (
            "nvidia",
            {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"},
            1,
            Ask(memory=GiB),
        ),
        (
            "ascend",
            {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "2k"},
            1,
            Ask(memory=2000 * MiB),
        ),
        (
            "hygon",
            {"hygon.com/dcunum": "1", "hygon.com/dcumem": "2k", "hygon.com/dcucores": "60"},
            1,
            Ask(memory=2000 * MiB, core=60),
        ),
        (
            "cambricon",
            {"cambricon.com/vmlu": "1", "cambricon.com/mlu370.smlu.vmemory": "20"},
            1,
            Ask(memory=5 * GiB),
        ),
        (
            "iluvatar",
            {"iluvatar.ai/BI-V150-vgpu": "1", "iluvatar.ai/BI-V150.vMem": "64"},
            1,
            Ask(memory=16 * GiB),
        ),
        (
            "mthreads",
            {
                "mthreads.com/vgpu": "1",
                "mthreads.com/sgpu-memory": "32",
                "mthreads.com/sgpu-core": "8",
            },
            1,
            Ask(memory=16 * GiB, core=8, core_of=16),
        ),
        (
            "metax",
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "60",
                "metax-tech.com/vmemory": "4",
            },
            1,
            Ask(memory=4 * GiB, core=60),
        ),
        (
            "metax",
            {"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "2Gi"},
            1,
            Ask(memory=2 * GiB),
        ),
    ],
)
def test_each_vendors_words_mean_what_its_users_know(
    vendor: str, limits: dict[str, str], count: int, ask: Ask
) -> None:
    parsed = asked(limits)

    assert (Selector(include=(vendor,)), count, (ask,) * count) == (
        parsed.request.vendor,
        parsed.count,
        parsed.request.asks,
    )


def test_memory_alone_means_one_card() -> None:
    assert 1 == asked({"nvidia.com/gpumem": "3000"}).count


@pytest.mark.parametrize("group_count", range(1, 17))
def test_core_groups_of_sixteen_are_given_exactly_also_of_a_softly_shared_card(
    group_count: int,
) -> None:
    (vendor,) = (vendor for vendor in VENDORS.declarations() if vendor.name == "mthreads")
    hard = vendor.device(
        uuid="MTT-1",
        model="MTT S4000",
        index=0,
        memory=48 * GiB,
        enforcement=Enforcement.PARTITION,
    )
    (ask,) = asked(
        {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-core": str(group_count)}
    ).request.asks

    for device in (hard, with_software_limiter(hard)):
        cut = portion(device, evolve(ask, memory=GiB), count=1, free=device.capacity)
        assert cut is not None
        assert group_count == Fraction(16 * cut.takes[CORE], device.of_card(CORE))
        charges = Quotas(WORDS).charge(device, cut.takes)
        assert group_count == charges["mthreads.com/sgpu-core"]


def test_a_pod_without_our_words_asks_nothing() -> None:
    other = read(Pod, pod({"cpu": "1"}))
    assert (None, ()) == (WORDS.pod_request(other), WORDS.asked(other))


def test_nothing_of_what_else_pods_say_stays_in_memory() -> None:
    """A webhook has no limit of memory, and anybody may ask it about pods."""
    tracemalloc.start()
    for number in range(50):
        plain = pod({"nvidia.com/gpu": "1"})
        plain["metadata"]["annotations"] = {"mine": str(number) * 100_000}
        WORDS.asked(read(Pod, plain))
    remaining, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert remaining < 1_000_000


def test_annotations_choose_cards() -> None:
    parsed = asked(
        {"nvidia.com/gpu": "1"},
        notes={
            "nvidia.com/use-gputype": "A100,V100",
            "nvidia.com/nouse-gpuuuid": "GPU-1",
            "nvidia.com/numa-bind": "true",
        },
    )

    assert (Selector(include=("A100", "V100")), Selector(exclude=("GPU-1",)), True) == (
        parsed.request.model,
        parsed.request.uuid,
        parsed.request.numa,
    )


def test_a_model_is_found_although_users_spell_it_otherwise_than_the_driver() -> None:
    parsed = asked({"hygon.com/dcunum": "1"}, notes={"hygon.com/use-dcutype": "DCU-K100_AI"})

    assert Selector(include=("K100-AI",)) == parsed.request.model


def test_orders_are_read_from_hami_annotations_and_our_own() -> None:
    hami_notes = {
        "hami.io/node-scheduler-policy": "spread",
        "hami.io/gpu-scheduler-policy": "numa,binpack",
    }
    pod_request = WORDS.pod_request(read(Pod, pod({"nvidia.com/gpu": "1"}, notes=hami_notes)))

    assert pod_request is not None
    keys = (CardKey.NUMA, CardKey.BINPACK)
    assert ("spread", PlacementChain(keys=keys)) == (
        pod_request.node_placement,
        pod_request.placement_chain,
    )
    assert not asked({"nvidia.com/gpu": "1"}, notes=hami_notes).request.numa
    own_notes = {**hami_notes, "hetero.io/device-placement": "numa,spread"}
    own_request = WORDS.pod_request(read(Pod, pod({"nvidia.com/gpu": "1"}, notes=own_notes)))
    assert own_request is not None
    assert ("spread", None) == (own_request.device_placement, own_request.placement_chain)
    assert asked({"nvidia.com/gpu": "1"}, notes=own_notes).request.numa


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        ("binpack", ("binpack", "numa")),
        ("spread", ("spread", "numa")),
        ("numa", ("numa",)),
        ("numa,binpack,spread", ("numa", "binpack", "spread")),
        ("spread, numa, spread", ("spread", "numa")),
        ("mutex,topology-aware", ("spread",)),
        ("topology-aware", ("spread", "numa")),
        ("mutex", ("spread", "numa")),
        ("binpack,mutex", ("binpack",)),
    ],
)
def test_hamis_chain_is_read_in_its_order(policy: str, keys: tuple[str, ...]) -> None:
    order = placement_chain({"hami.io/gpu-scheduler-policy": policy})

    assert PlacementChain(keys=tuple(map(CardKey, keys))) == order


@pytest.mark.parametrize(
    "weights",
    [
        *("", "slot=1", "slot=1,core=1", "slot=1,core=1,memory=-1", "slot=0,core=0,memory=0"),
        *("slot=1,core=1,slot=3", "slot=1,core=1,disk=3", "slot=1,core=1,memory=1,memory=2"),
        *("slot=1,core=1,memory=x", "slot,core,memory"),
    ],
)
def test_weights_that_hami_refuses_are_refused(weights: str) -> None:
    with pytest.raises(BadInput, match=r"container main: hami.* is no weights"):
        asked({"nvidia.com/gpu": "1"}, notes={"hami.io/device-scoring-weights": weights})


def test_weights_without_a_policy_are_for_the_clusters() -> None:
    order = placement_chain({"hami.io/device-scoring-weights": " slot=1, core=2 ,memory=3"})

    assert PlacementChain(keys=(), slots=1, core=2, memory=3) == order


def test_the_containers_variable_chooses_the_policy() -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}

    def policy(value: str) -> tuple[Policy, bool]:
        parsed = asked(limits, env={"GPU_CORE_UTILIZATION_POLICY": value})
        return parsed.request.policy, parsed.unlimited

    assert [(Policy.FIXED, False), (Policy.FIXED, False), (Policy.FIXED, True)] == [
        policy("default"),
        policy("force"),
        policy("disable"),
    ]


def test_priority_zero_goes_first() -> None:
    priorities = [
        asked({"nvidia.com/gpu": "1", "nvidia.com/priority": said}).request.priority
        for said in ("0", "1")
    ]

    assert [Priority.HIGH, Priority.LOW] == priorities


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"nvidia.com/gpucores": "110"}, "gpucores 110 is more than a card has"),
        ({"nvidia.com/gpu": "17"}, "nvidia.com/gpu 17: a container has at most 16 cards"),
        ({"nvidia.com/gpu": "1000000000"}, "gpu '1000000000' is not a number of devices"),
        ({"nvidia.com/gpumem-percentage": "101"}, "101 is over 100 percent"),
        (
            {"nvidia.com/gpu": "1", "hygon.com/dcunum": "1"},
            "container main: asks for .*: a container has cards of one kind",
        ),
        ({"nvidia.com/gpu": "500m"}, "'500m' is not a whole number"),
    ],
)
def test_nonsense_is_one_sentence(limits: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        asked(limits)


def settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return load(path)


def asked_with(tmp_path: Path, text: str, limits: dict[str, str], **rest: Any) -> Any:
    """Return what a container asks in a cluster with these settings."""
    return asked(limits, settings(tmp_path, text).vocabulary(VENDORS), **rest)


def test_a_cluster_may_rename_resources(tmp_path: Path) -> None:
    text = '[resources]\n"nvidia.com/gpu" = "example.com/card"\n'

    assert 2 == asked_with(tmp_path, text, {"example.com/card": "2"}).count


def test_default_count_memory_and_core_are_for_those_who_do_not_say(tmp_path: Path) -> None:
    text = '[defaults]\ncount = 2\nmemory = "4Gi"\ncore = 20\n'
    silent = asked_with(tmp_path, text, {"nvidia.com/gpucores": "50"})
    saying = asked_with(tmp_path, text, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"})

    assert (2, (Ask(memory=4 * GiB, core=50),) * 2) == (silent.count, silent.request.asks)
    assert (1, (Ask(memory=GiB, core=20),)) == (saying.count, saying.request.asks)


def test_the_core_limit_may_be_disabled_and_a_container_may_force_it(tmp_path: Path) -> None:
    text = "[defaults]\ncore-limit = false\n"
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}
    forced = asked_with(tmp_path, text, limits, env={"GPU_CORE_UTILIZATION_POLICY": "force"})

    assert (True, 30) == (
        asked_with(tmp_path, text, limits).unlimited,
        asked_with(tmp_path, text, limits).request.asks[0].core,
    )
    assert not forced.unlimited


def test_an_elastic_cluster_lends_idle_core_and_a_container_may_force_its_limit(
    tmp_path: Path,
) -> None:
    text, limits = '[defaults]\npolicy = "elastic"\n', {"nvidia.com/gpucores": "30"}
    forced = asked_with(tmp_path, text, limits, env={"GPU_CORE_UTILIZATION_POLICY": "force"})

    assert Policy.ELASTIC == asked_with(tmp_path, text, limits).request.policy
    assert Policy.FIXED == forced.request.policy


def test_the_cluster_and_then_the_patterns_of_a_nodes_name_say_what_it_gives_out(
    tmp_path: Path,
) -> None:
    settings_read = settings(
        tmp_path,
        '[nodes."*"]\ncards.max_sharers = 4\nscale.core = 2\n'
        '[nodes."old-*"]\ncards.max_sharers = 2\nscale.memory = 1.5\ncards.partitioned = "none"\n'
        'heterod.on_debt = "report"\n',
    )
    plain, old = settings_read.of_node("new-1"), settings_read.of_node("old-1")

    assert (4, Decimal(2), Decimal(1)) == (plain.max_sharers, plain.core_scale, plain.memory_scale)
    assert (2, Decimal(2), Decimal("1.5")) == (old.max_sharers, old.core_scale, old.memory_scale)
    assert ("mixed", "none") == (plain.partitioned.value, old.partitioned.value)
    assert ("end", "report") == (plain.on_debt.value, old.on_debt.value)


def test_one_list_says_whose_code_services_and_agents_run_unless_a_machine_has_its_own(
    tmp_path: Path,
) -> None:
    settings_read = settings(tmp_path, '[vendors]\nallow = ["hetero-nvidia"]\n')
    (tmp_path / "node.toml").write_text('[vendors]\nallow = ["hetero-hygon"]\n')

    def allowed(name: str, environ: dict[str, str]) -> bool:
        try:
            return bool(settings_read.registry(environ).plugin(name))
        except NotFound:
            return False

    own = {"HETERO_CONFIG": str(tmp_path / "node.toml")}
    assert ("hetero-nvidia",) == settings_read.of_node("n1").vendors
    assert (True, False) == (allowed("nvidia", {}), allowed("hygon", {}))
    assert (False, True) == (allowed("nvidia", own), allowed("hygon", own))
    with pytest.raises(BadInput, match="is not a list of names of distributions"):
        settings(tmp_path, '[vendors]\nallow = "x"\n')
    with pytest.raises(BadInput, match="'deny' is not known"):
        settings(tmp_path, "[vendors]\ndeny = []\n")


def test_a_runtime_class_is_of_a_vendor_that_is_there(tmp_path: Path) -> None:
    settings_read = settings(tmp_path, '[runtime-classes]\nnvidia = "nvidia"\n')
    wrong = settings(tmp_path, '[runtime-classes]\nnobody = "runc"\n')

    assert settings_read.vocabulary(VENDORS)
    with pytest.raises(BadInput, match="runtime-classes: there is no vendor 'nobody'"):
        wrong.vocabulary(VENDORS)


@pytest.mark.parametrize("amount", ["1e999999999", "NaN", "inf", "0x10", "--1", ""])
def test_a_quantity_that_is_none_is_one_sentence(amount: str) -> None:
    with pytest.raises(BadInput, match="is not a"):
        asked({"nvidia.com/gpu": "1", "nvidia.com/gpumem": amount})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('node-placements = "spread"', "'node-placements' is not known"),
        ("[defaults]\ncount = -1", "defaults.count -1 is not a whole number, 0"),
        ('[nodes."n1"]\ncards.max_sharer = 1', "nodes.'n1': unknown key 'max_sharer'"),
        ("nodes = 1", r"nodes is a table of tables: write \[nodes.\"\*\".cards\]"),
    ],
)
def test_a_setting_that_is_not_known_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        settings(tmp_path, text)


def test_annotations_say_what_becomes_of_excess_and_of_programs_without_a_limiter() -> None:
    limits = {"nvidia.com/gpu": "1"}
    notes = {"hetero.io/on-excess": "kill", "hetero.io/on-bypass": "report"}

    chosen, unsaid = asked(limits, notes=notes).request, asked(limits).request

    assert (OnExcess.KILL, OnBypass.REPORT) == (chosen.on_excess, chosen.on_bypass)
    assert (None, None) == (unsaid.on_excess, unsaid.on_bypass)
    for name, words in (("on-excess", "report, refuse, kill"), ("on-bypass", "report, kill")):
        with pytest.raises(BadInput, match=f"hetero.io/{name} 'end' is none of {words}"):
            asked(limits, notes={f"hetero.io/{name}": "end"})


def test_an_annotation_chooses_slices_that_are_cut_or_shares_that_a_limiter_holds() -> None:
    limits = {"hygon.com/dcunum": "1"}

    def chosen(notes: dict[str, str], limits: dict[str, str] = limits) -> Selector:
        enforcement: Selector = asked(limits, notes=notes).request.enforcement
        return enforcement

    assert Selector(include=("preload",)) == chosen({"hetero.io/slices": "soft"})
    assert Selector(include=("kernel", "partition")) == chosen({"hetero.io/slices": "hard"})
    assert Selector() == chosen({})
    with pytest.raises(BadInput, match=r"slices 'firm' is none of hard, soft"):
        chosen({"hetero.io/slices": "firm"})


def test_an_annotation_chooses_by_what_a_card_is_shared() -> None:
    limits, mode = {"nvidia.com/gpu": "1"}, "nvidia.com/vgpu-mode"

    def chosen(**notes: str) -> Selector:
        enforcement: Selector = asked(limits, notes=notes).request.enforcement
        return enforcement

    by_service = Selector(include=("service",))
    assert by_service == chosen(**{"hetero.io/sharing": "mps"}) == chosen(**{mode: "mps"})
    assert not chosen(**{"hetero.io/sharing": "time"}).allows("service", all_of_it=True)
    assert not chosen(**{mode: "hami-core"}).allows("service", all_of_it=True)
    assert chosen(**{"hetero.io/sharing": "time"}).allows("preload", all_of_it=True)
    with pytest.raises(BadInput, match=r"sharing mps: no nvidia.com/gpu is shared so"):
        chosen(**{"hetero.io/sharing": "mps", mode: "mig"})
    with pytest.raises(BadInput, match=r"slices hard: no nvidia.com/gpu is shared so"):
        chosen(**{"hetero.io/sharing": "mps", "hetero.io/slices": "hard"})
    with pytest.raises(BadInput, match=r"sharing 'MPS' is none of time, mps"):
        chosen(**{"hetero.io/sharing": "MPS"})


def test_a_resource_of_cards_that_are_cut_is_not_shared_softly() -> None:
    limits, hard = {"metax-tech.com/sgpu": "1"}, Selector(include=("partition",))

    with pytest.raises(BadInput, match=r"slices soft: no metax-tech.com/sgpu is shared so"):
        asked(limits, notes={"hetero.io/slices": "soft"})
    assert hard == asked(limits, notes={"hetero.io/slices": "hard"}).request.enforcement


def test_an_annotation_makes_a_pods_grant_strict() -> None:
    limits = {"nvidia.com/gpu": "1"}

    assert asked(limits, notes={"hetero.io/strict": "true"}).request.strict
    assert not asked(limits, notes={"hetero.io/strict": "false"}).request.strict
    assert not asked(limits).request.strict
    with pytest.raises(BadInput, match=r"strict 'yes' is none of true, false"):
        asked(limits, notes={"hetero.io/strict": "yes"})


#: Every resource of every vendor that is a part of a card, with the one that counts its cards.
PARTS = sorted(
    {
        (names.count, part)
        for vendor in WORDS.vendors
        for names in vendor.resource_names
        for part in names.sizes
    }
)
#: Every resource that says who goes first on a card, with the one that counts its cards.
PRIORITIES = sorted(
    {
        (names.count, names.priority)
        for vendor in WORDS.vendors
        for names in vendor.resource_names
        if names.priority is not None
    }
)


#: Every resource of every vendor that counts cards: whole ones, shares and instances.
COUNTS = sorted({names.count for vendor in WORDS.vendors for names in vendor.resource_names})


@pytest.mark.parametrize("zero", ["0", 0, "00", "0k", "0Gi", "0.0", "-0", "0e3"])
@pytest.mark.parametrize(("count", "part"), PARTS)
def test_a_part_of_a_card_beside_no_card_is_refused_with_both_names(
    count: str, part: str, zero: str | int
) -> None:
    with pytest.raises(BadInput, match=f"container main: {count} is 0, and {part} 1 is a part"):
        WORDS.asked(read(Pod, pod({count: zero, part: "1"})))


@pytest.mark.parametrize(("count", "part"), PARTS)
def test_a_part_of_a_card_is_refused_beside_any_resource_that_counts_no_cards(
    count: str, part: str
) -> None:
    """A size without a number of cards means one card, but not where the pod asks for none."""
    zero_counts = [other for other in COUNTS if other != count]
    refusals = []
    for zero_count in zero_counts:
        with pytest.raises(BadInput) as refusal:
            WORDS.asked(read(Pod, pod({zero_count: "0", part: "1"})))
        refusals.append(str(refusal.value))

    assert [
        f"container main: {zero_count} is 0, and {part} 1 is a part of a card: "
        f"leave {part} out for no card, or ask for {count} 1"
        for zero_count in zero_counts
    ] == refusals


@pytest.mark.parametrize(("count", "part"), PARTS)
def test_no_card_and_no_part_of_one_is_no_card(count: str, part: str) -> None:
    for zero_count in COUNTS:
        assert () == WORDS.asked(read(Pod, pod({zero_count: "0", part: "0"})))


@pytest.mark.parametrize("amount", ["0", "1", "5"])
@pytest.mark.parametrize(("count", "priority"), PRIORITIES)
def test_a_priority_beside_no_card_is_no_card(count: str, priority: str, amount: str) -> None:
    """It is no part of a card: a chart that has both asks for none by the number alone."""
    for zero_count in COUNTS:
        assert () == WORDS.asked(read(Pod, pod({zero_count: "0", priority: amount})))
    other_count = next(other for other, _ in PARTS if not other.startswith(count.partition("/")[0]))
    plain = pod({count: "0", priority: amount, other_count: "1"})
    assert [other_count] == [one.resource_names.count for one in WORDS.asked(read(Pod, plain))]


@pytest.mark.parametrize("zero_count", COUNTS)
def test_a_card_is_given_by_its_own_number_beside_a_number_of_no_other_cards(
    zero_count: str,
) -> None:
    """A chart with values for two vendors has the other one's number at 0."""
    for count, part in PARTS:
        if count != zero_count:
            assert count == asked({zero_count: "0", count: "1", part: "1"}).resource_names.count


def test_every_vendor_has_parts_that_are_refused_so() -> None:
    counted = {count for count, _ in PARTS}

    assert [] == [
        vendor.name
        for vendor in WORDS.vendors
        if counted.isdisjoint(names.count for names in vendor.resource_names)
    ]


@pytest.mark.parametrize("type_name", ["MLU370-X8", "MLU-MLU370-X8", "mlu-mlu370", "MLU370"])
def test_a_type_of_cambricon_may_have_hamis_kind_of_device_before_it(type_name: str) -> None:
    card = {"cambricon.com/vmlu": "1"}
    chosen = asked(card, notes={"cambricon.com/use-mlutype": type_name}).request
    avoided = asked(card, notes={"cambricon.com/nouse-mlutype": type_name}).request

    assert chosen.model.allows("MLU370-X8")
    assert not chosen.model.allows("MLU590-M9")
    assert (False, True) == (avoided.model.allows("MLU370-X8"), avoided.model.allows("MLU590-M9"))


@pytest.mark.parametrize(
    ("type_name", "model"),
    [
        ("NVIDIA-NVIDIA L4", "NVIDIA L4"),
        ("nvidia-tesla v100-sxm2-32gb", "Tesla V100-SXM2-32GB"),
        ("NVIDIA-NVIDIA GeForce RTX 3090,NVIDIA-NVIDIA L4", "NVIDIA GeForce RTX 3090"),
        ("A100", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_a_type_as_hamis_nodes_have_it_means_that_model(type_name: str, model: str) -> None:
    card = {"nvidia.com/gpu": "1"}
    chosen = asked(card, notes={"nvidia.com/use-gputype": type_name}).request
    avoided = asked(card, notes={"nvidia.com/nouse-gputype": type_name}).request

    assert chosen.model.allows(model)
    assert not chosen.model.allows("NVIDIA H200")
    assert (False, True) == (avoided.model.allows(model), avoided.model.allows("NVIDIA H200"))


def test_hamis_words_choose_among_the_cards_of_every_vendor() -> None:
    """A word that means nothing would be passed over in silence."""
    assert [] == [
        names.count
        for vendor in WORDS.vendors
        for names in vendor.resource_names
        if None in (names.choice.include_uuid, names.choice.exclude_uuid)
    ]


def test_cards_of_amds_are_chosen_by_type_and_uuid() -> None:
    notes = {
        "amd.com/use-gputype": "MI300X, mi210",
        "amd.com/nouse-gputype": "MI250",
        "amd.com/use-gpu-uuid": "GPU-a",
        "amd.com/nouse-gpu-uuid": "GPU-b",
    }
    chosen = asked({"amd.com/gpu": "1"}, notes=notes).request

    assert chosen.model.allows("AMD Instinct MI300X")
    assert not chosen.model.allows("AMD Instinct MI250")
    assert Selector(include=("GPU-a",), exclude=("GPU-b",)) == chosen.uuid
