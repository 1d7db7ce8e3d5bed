"""Communication by name: real kernel names, and laws that hold for any."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.read.traces.classify import CommName, CommNames, NamePattern, load_comm_names, required_literal
from makeway.values.errors import DataFileError

BUNDLED = load_comm_names()

# Names as profilers and sources spell them.
COMM = [
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "nccl", "all-reduce"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "nccl", "send-recv"),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "nccl", None),
    ("ncclKernel_AllToAllPivot_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "nccl", "all-to-all"),
    ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "nccl", "all-reduce"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "all-gather"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "reduce-scatter"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "nccl", "send-recv"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "nccl", None),
    ("ncclDevKernelDebug_Generic_2(ncclDevKernelArgsStorage<4096ul>)", "nccl", None),
    ("_Z23ncclDevKernel_Generic_124ncclDevKernelArgsStorageILm4096EE", "nccl", None),
    ("_Z39ncclDevKernel_AllReduce_Sum_f32_TREE_LL24ncclDevKernelArgsStorageILm4096EE", "nccl", "all-reduce"),
    ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "nccl", "all-reduce"),
    ("ncclSymkDevKernel_ReduceScatter_LL_sum_f8e4m3(ncclSymkDevWorkArgs4K)", "nccl", "reduce-scatter"),
    ("ncclGenkDevKernel_AllGather_Ring_LL128(ncclGenkDevWorkArgs4K)", "nccl", "all-gather"),
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "nccl", "all-reduce"),
    ("ncclAllGatherRingLLKernel_copy_i8(ncclColl)", "nccl", "all-gather"),
    ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "nccl", None),
    ("mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "msccl", None),
    ("void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int, __half*, __half*)", "mscclpp", None),
    (
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long, "
        "unsigned int**, unsigned long, unsigned long)",
        "torch-symm-mem",
        "all-reduce",
    ),
    ("void multimem_one_shot_all_reduce_kernel<float, 16>(float*, float*)", "torch-symm-mem", "all-reduce"),
    ("void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)", "torch-symm-mem", "all-reduce"),
    ("void two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)", "torch-symm-mem", "all-reduce"),
    ("void two_shot_all_reduce_kernel<float, 16, 8, false, false>(float**)", "torch-symm-mem", "all-reduce"),
    (
        "void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true, false>(c10::BFloat16**)",
        "torch-symm-mem",
        "reduce-scatter",
    ),
    ("void multimem_all_gather_kernel<16>(char*, char*, unsigned long)", "torch-symm-mem", "all-gather"),
    ("_multimem_reduce_scatter_kernel", "torch-symm-mem", "reduce-scatter"),
    (
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
        "torch-symm-mem",
        None,
    ),
    ("_ZN4c10d16symmetric_memoryL18wait_signal_kernelEPPjiiiim", "torch-symm-mem", None),
    ("c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int)", "torch-symm-mem", "all-to-all"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "deepep", "all-to-all"),
    ("_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4Pf", "deepep", "all-to-all"),
    ("void deep_ep::internode_ll::combine<(bool)0, (int)7168>(void*, void*)", "deepep", "all-to-all"),
    ("void deep_ep::internode::notify_dispatch<false, 4>(int const*)", "deepep", None),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*)", "deepep", None),
    ("void deep_ep::elastic::hybrid_dispatch_impl<false, true, 20>(void*)", "deepep", "all-to-all"),
    ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)", "mori", "all-to-all"),
    ("void rdxn_on_stream_kernel<float, (rdxn_ops)6>(int, float*, float const*)", "nvshmem", "all-reduce"),
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "nvshmem", None),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", "custom-all-reduce", "all-reduce"),
    ("void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)", "custom-all-reduce", "all-reduce"),
    ("void aiter::cross_device_reduce_2stage<bf16, 8, false>(aiter::RankData*)", "aiter", "all-reduce"),
    ("void aiter::reduce_scatter_cross_device_store<bf16, 4>(aiter::RankData*)", "aiter", "reduce-scatter"),
    ("void aiter::allgather_lastdim<__half, 8>(aiter::RankData*)", "aiter", "all-gather"),
    (
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half,4>, true>, __half>",
        "quick-reduce",
        "all-reduce",
    ),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>",
        "trtllm",
        "all-reduce",
    ),
    (
        "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, __nv_bfloat16, true>",
        "trtllm",
        "all-reduce",
    ),
    ("moeA2ADispatchKernel(int const*, void const*)", "trtllm", "all-to-all"),
    (
        "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*, dpsk::ep::internode::SourceMeta*)",
        "deepep",
        "all-to-all",
    ),
    ("void dpsk::ep::internode::combine<false, 4, __nv_bfloat16>(int4*)", "deepep", "all-to-all"),
    ("void dpsk::ep::internode::dispatch_ll<7168>(void*)", "deepep", "all-to-all"),
    ("void dpsk::ep::internode::notify_dispatch<false, 4>(int const*, long*)", "deepep", None),
    ("void dpsk::ep::internode::cached_notify<8>(int)", "deepep", None),
    ("_ZN4dpsk2ep9internode8dispatchILb0ELi8ELb1ELi8EEEvP4int4", "deepep", "all-to-all"),
    (
        "void a2a_kernels::a2a_dispatch_send_kernel<true, false, 16ul, 8ul>(unsigned long, unsigned long)",
        "pplx",
        "all-to-all",
    ),
    (
        "void (anonymous namespace)::dispatchKernel<16u, true, false>(int*, unsigned long, std::byte*, unsigned long)",
        "pplx",
        "all-to-all",
    ),
    (
        "void (anonymous namespace)::combineKernel<(unsigned int)16, (bool)1, (bool)1>(float*, std::byte**)",
        "pplx",
        "all-to-all",
    ),
    (
        "flashinfer::trtllm_alltoall::moeAllToAllKernel(flashinfer::trtllm_alltoall::MoeEpWorldInfo)",
        "trtllm",
        "all-to-all",
    ),
    (
        "void flashinfer::comm::ulysses_a2a_kernel<__nv_bfloat16, 8, 0>(__nv_bfloat16 const*)",
        "flashinfer",
        "all-to-all",
    ),
    ("void bytedance::flux::a2a_single_kernel<float, 1024>(All2AllSingleParams)", "flux", "all-to-all"),
    ("bytedance::flux::all2all_v2(bytedance::flux::All2allParams)", "flux", "all-to-all"),
    ("all_to_all_kernel", "triton-distributed", "all-to-all"),
    ("kernel_dispatch_token_intra_node", "triton-distributed", "all-to-all"),
    ("kernel_combine_token", "triton-distributed", "all-to-all"),
    ("kernel_pre_attn_a2a", "triton-distributed", "all-to-all"),
    (
        "void flashinfer::mixed_comm::fused_allreduce_allgather_kernel<8, 4, 2, false>(MixedCommArgs)",
        "flashinfer",
        None,
    ),
    ("void flashinfer::mixed_comm::allreduce_kernel<8, 4>(MixedCommArgs)", "flashinfer", "all-reduce"),
    ("void flashinfer::mixed_comm::allgather_kernel<8, 4>(MixedCommArgs)", "flashinfer", "all-gather"),
    ("void flashinfer::mixed_comm::reducescatter_kernel<8, 4>(MixedCommArgs)", "flashinfer", "reduce-scatter"),
    ("void flashinfer::ipc_rsag_push_param_kernel<__half, 8, true>(PushOneshotParamData)", "flashinfer", "all-reduce"),
    ("void flashinfer::ipc_tp2_remote_push_kernel<__half, true, true>(Data)", "flashinfer", "all-reduce"),
    ("bytedance::flux::CudaIpcBarrierAllKernel(bytedance::flux::CudaIpcBarrierAllArgs)", "flux", None),
    ("allreduce_one_shot_push_intra_node_kernel", "triton-distributed", "all-reduce"),
    ("allreduce_two_shot_multimem_intra_node_kernel", "triton-distributed", "all-reduce"),
    ("all_gather_push_2d_kernel", "triton-distributed", "all-gather"),
    ("_forward_push_numa_2d_ll_kernel", "triton-distributed", "all-gather"),
    ("barrier_all_intra_node_kernel", "triton-distributed", None),
    ("copy_and_barrier_all_intra_node_kernel", "triton-distributed", None),
    (
        "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__half, 4u, true>(AllReducePushData)",
        "custom-all-reduce",
        "all-reduce",
    ),
    ("one_shot_all_reduce_bias_rms_norm_kernel", "torch-symm-mem", "all-reduce"),
    (
        "void mscclpp::collective::allreduceNvlsPacket<(mscclpp::ReduceOp)0, __half>(__half const*)",
        "mscclpp",
        "all-reduce",
    ),
    ("nvshmemi_proxy_rma_signal_entrypoint(void*, void*)", "nvshmem", None),
    ("void lamport_style_one_shot_all_reduce_norm_kernel<8, __half, 8>(AllReduceParams)", "trtllm", "all-reduce"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs<2>(int, int, int)", "userbuffers", "reduce-scatter"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int, int, int)", "userbuffers", "all-gather"),
    ("void userbuffers_fp16_sum_inplace_gpu_mc<8>(int, int, int)", "userbuffers", "all-reduce"),
    ("ncclReduceScatterRingLLKernel_sum_f32(ncclColl)", "nccl", "reduce-scatter"),
    ("ncclSendRecvKernel_copy_i8(ncclColl)", "nccl", "send-recv"),
    ("void allreduce_LL_1node<__half>(__half*, __half*, __half*)", "mscclpp", "all-reduce"),
    ("c10d::nvshmem_extension::exchangeSplitAndOffset(long*, long*, int, int)", "torch-symm-mem", None),
    ("void deep_ep::elastic::pp_send_impl<20, 2, 4, 100>(ncclDevComm)", "deepep", "send-recv"),
    ("void hybrid_ep::dispatch_kernel<unsigned short>(hybrid_ep::dispatch_kernel_param_t)", "deepep", "all-to-all"),
    ("hybrid_ep::device_sync_kernel(unsigned int*, unsigned int)", "deepep", None),
    ("void fcollect_on_stream_kernel<char>(int, char*, char const*, unsigned long)", "nvshmem", "all-gather"),
    ("void reducescatter_on_stream_kernel<float, (rdxn_ops)6>(int, float*)", "nvshmem", "reduce-scatter"),
    ("void alltoall_on_stream_kernel<char>(int, char*, char const*, unsigned long)", "nvshmem", "all-to-all"),
    ("void lamport_style_one_shot_all_reduce_norm_kernel<4, __half, 8>(AllReduceParams)", "trtllm", "all-reduce"),
    ("kuserbuffers_pushsendrecv(int*, int*, int4*, int4*, int)", "userbuffers", "send-recv"),
]

COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>::PtxReduceByKeyPolicy>",
    "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<float>>",
    "void splitKreduce_kernel<32, 16, int, float, __half, float, __half>",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
    "cunn_SoftMaxForwardAllReduce",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<8>(void*)",
    "void aiter::local_device_load_rmsnorm<bf16, 512, 2>(aiter::RankSignals)",
    "void moeA2APrepareDispatchKernel(int*, int*)",
    "nccl:all_reduce",  # a range of the profiler, not a kernel
    "ncclprofiler",
    "my_ncclKernel_AllReduce_lookalike",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt",
    "Memcpy DtoD (Device -> Device)",
    "barrier_kernel",
    "",
    "_ZN2at6native27unrolled_elementwise_kernelINS0_13AUnaryFunctorE",
    "at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(float*)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(float*)",
    "void at::native::index_put_kernel_impl<float>(float*)",
    "void c10d::checkForNaN<c10::BFloat16>(c10::BFloat16*, unsigned long)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>(Flash_fwd_params)",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void combineKernel<float>(float*, float const*, float const*)",
    "combineKernel(float*, float*, float*, float, float, int)",
    "void dispatchKernel<__nv_dl_wrapper_t<Fn>>(Fn, float*, int)",
    "void moe::dev::finalize::finalizeKernelVecLoad<float>(float*)",
    "kernel_gqa_fwd_batch_decode_split_kv_persistent",
    "kernel_ring_reduce_non_tma",
    "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
    "lamport_initialize_kernel(float*, unsigned long)",
    "triton_poi_fused_all_reduce_add_0",
    "void cutlass::device_kernel<flux::GemmV3ReduceScatter_Kernel<128>>(int)",
]


@pytest.mark.parametrize(("name", "family", "kind"), COMM)
def test_kernels_that_communicate_are_known_by_name(name: str, family: str, kind: str | None) -> None:
    found = BUNDLED.find(name)
    assert found is not None
    assert (found.family, found.kind) == (family, kind)


@pytest.mark.parametrize("name", COMPUTE)
def test_a_name_that_merely_sounds_like_communication_is_compute(name: str) -> None:
    assert BUNDLED.find(name) is None


names = st.one_of(
    st.sampled_from([row[0] for row in COMM] + COMPUTE),
    st.text(max_size=40),
    st.builds(lambda name, cut: name[cut:], st.sampled_from([row[0] for row in COMM]), st.integers(0, 60)),
)


@given(st.lists(names, max_size=20))
def test_what_was_asked_before_does_not_change_an_answer(asked: list[str]) -> None:
    warm = load_comm_names()
    for name in asked:
        first = warm.find(name)
        assert warm.find(name) == first == CommNames(patterns=warm.patterns).find(name)


@given(
    st.sampled_from([row[0] for row in COMM]), st.sampled_from(["void ", "__global__ void ", "(anonymous namespace)::"])
)
def test_a_return_type_or_namespace_in_front_changes_nothing(name: str, front: str) -> None:
    assert BUNDLED.find(front + name) == BUNDLED.find(name)


def test_every_bundled_pattern_decides_some_real_name() -> None:
    names = [*(name for name, *_ in COMM), *COMPUTE]
    deciding = {next((pattern for pattern in BUNDLED.patterns if pattern.match.search(name)), None) for name in names}
    assert [pattern.match.pattern for pattern in BUNDLED.patterns if pattern not in deciding] == []


def _unbounded(parsed: Any) -> bool:
    """Whether a parsed expression repeats something without limit other than digits."""
    for operation, argument in parsed:
        inside: list[Any] = []
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            _, high, inner = argument
            if high == _constants.MAXREPEAT and "CATEGORY_DIGIT" not in repr(inner):
                return True
            inside = [inner]
        elif operation is _constants.SUBPATTERN:
            inside = [argument[-1]]
        elif operation is _constants.BRANCH:
            inside = argument[1]
        if any(map(_unbounded, inside)):
            return True
    return False


@pytest.mark.parametrize("pattern", BUNDLED.patterns, ids=lambda pattern: pattern.match.pattern)
def test_a_long_name_costs_no_more_than_its_length(pattern: NamePattern) -> None:
    """Names in traces are hostile: no pattern may look further than a bounded distance from each place."""
    assert not _unbounded(_parser.parse(pattern.match.pattern))


def test_names_survive_the_way_to_a_worker_process() -> None:
    assert pickle.loads(pickle.dumps(BUNDLED)) == BUNDLED


# --- a user's own file -------------------------------------------------------------------------


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "names.toml"
    file.write_text(text)
    return file


def test_a_users_pattern_wins_over_the_bundled_ones(tmp_path: Path) -> None:
    own = load_comm_names(
        written(tmp_path, '[[pattern]]\nmatch = "ncclDevKernel_SendRecv"\nfamily = "mine"\nkind = "all-to-all"\n')
    )
    assert own.find("ncclDevKernel_SendRecv(x)") == CommName(kind="all-to-all", family="mine")
    assert own.find("ncclDevKernel_AllGather_RING_LL(x)") == BUNDLED.find("ncclDevKernel_AllGather_RING_LL(x)")


def test_a_user_can_declare_a_kernel_compute(tmp_path: Path) -> None:
    own = load_comm_names(written(tmp_path, "[[compute]]\nmatch = '^ncclDevKernel_Generic'\n"))
    assert own.find("ncclDevKernel_Generic_1(x)") is None
    assert own.find("ncclDevKernel_SendRecv(x)") is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[pattern]]\nfamily = 'x'", "pattern 1: match is missing"),
        ("[[pattern]]\nmatch = 'a'", "pattern 1: family is missing"),
        ("[[pattern]]\nmatch = 'a'\nfamily = 'x'\nkind = 'all-reduc'", "did you mean 'all-reduce'"),
        ("[[pattern]]\nmatch = '('\nfamily = 'x'", "pattern 1: match is not a regular expression"),
        ("[[pattern]]\nmatch = '.*'\nfamily = 'x'", "pattern 1: match '.*' matches every name"),
        ("[[pattern]]\nmatch = 3\nfamily = 'x'", "pattern 1: match is missing; it must be a string"),
        ("[[compute]]\nmatch = 'a'\nfamily = 'x'", "compute 1: unknown key 'family'"),
        ("[[patern]]\nmatch = 'a'", "unknown key 'patern'; did you mean 'pattern'?"),
        ("pattern = 3", "write each pattern under"),
        ("[[pattern]]\nmatch = 'a'\nfamily = 'x'\nsource = 'y'", "source 'y' is not listed in"),
        ("sources = 3", "[sources] must be a table"),
        ("", "no patterns"),
        ("[[pattern", "not a TOML file"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(DataFileError) as caught:
        load_comm_names(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="cannot read name patterns"):
        load_comm_names(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"(?<![A-Za-z_])nccl(?:Symk?|Genk)?(?:Dev)?Kernel(?:Debug)?_AllReduce", "_AllReduce"),
        (r"abc|abd", ""),
        (r"(?:abc|abd)", ""),
        (r"abcd?", "abc"),
        (r"ab*cde", "cde"),
        (r"x{2,3}yz", "yz"),
        (r"a\d+bc[def]g", "bc"),
        (r"[]x]ab", "ab"),
        (r"(?i)abc", ""),
    ],
)
def test_a_literal_is_what_every_match_must_hold(pattern: str, literal: str) -> None:
    assert required_literal(re.compile(pattern)) == literal


@given(st.text("abcnlKernel_Rdu()<>:0123 ", max_size=40))
def test_looking_for_the_literal_first_changes_no_answer(name: str) -> None:
    for pattern in load_comm_names().patterns:
        assert pattern.found_in(name) == (pattern.match.search(name) is not None)
