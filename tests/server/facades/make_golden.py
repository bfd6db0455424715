"""Writes tests/data/grpc_golden.json: messages as the real stubs of other engines' APIs encode them.

It runs with the Python of build/venv-clients, which scripts/get-clients makes:
  build/venv-clients/bin/python tests/server/facades/make_golden.py
"""
import json
from pathlib import Path

from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import common_pb2 as smg
from tritonclient.grpc import model_config_pb2 as config
from tritonclient.grpc import service_pb2 as triton

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "grpc_golden.json"


def logprobs():
    return vllm.OutputLogProbs(
        token_logprobs=[-1.5], token_ids=[7],
        top_logprobs=[vllm.TopLogProbs(values=[-1.5, -2], token_ids=[7, 8])])


def vllm_requests():
    sampling = vllm.SamplingParams(
        temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, frequency_penalty=0.5,
        presence_penalty=-0.5, repetition_penalty=1.5, max_tokens=4, min_tokens=1, stop=["a", "b"],
        stop_token_ids=[5, 6], skip_special_tokens=True, spaces_between_special_tokens=True,
        ignore_eos=True, n=2, logprobs=3, prompt_logprobs=1, seed=-7,
        include_stop_str_in_output=True, truncate_prompt_tokens=9, regex="x")
    sampling.logit_bias[4] = 1.5
    yield vllm.GenerateRequest(
        request_id="id", tokenized=vllm.TokenizedInput(original_text="t", input_ids=[1, 2, 300]),
        sampling_params=sampling, stream=True, kv_transfer_params_json="{}", data_parallel_rank=1)
    yield vllm.GenerateRequest(text="hello", sampling_params=vllm.SamplingParams(json_object=True))
    for constraint in ({"json_schema": "s"}, {"grammar": "g"}, {"structural_tag": "t"},
                       {"choice": vllm.ChoiceConstraint(choices=["a"])}):
        yield vllm.SamplingParams(**constraint)
    yield vllm.AbortRequest(request_ids=["a", "b"])
    yield vllm.GetLoadsRequest(dp_rank=0, include=["core"])


def vllm_answers():
    yield vllm.GenerateResponse(chunk=vllm.GenerateStreamChunk(
        token_ids=[7], prompt_tokens=2, completion_tokens=1, cached_tokens=1,
        output_logprobs=logprobs(), index=1))
    yield vllm.GenerateResponse(complete=vllm.GenerateComplete(
        output_ids=[7, 8], finish_reason="stop", prompt_tokens=2, completion_tokens=2,
        cached_tokens=1, output_logprobs=logprobs(), index=1, matched_token_id=8))
    yield vllm.GenerateComplete(matched_stop_str="x")
    yield vllm.HealthCheckResponse(healthy=True, message="m")
    yield vllm.GetModelInfoResponse(
        model_path="p", is_generation=True, max_context_length=9, vocab_size=8,
        supports_vision=True, served_model_name="n", tokenizer_path="t", model_type="llama",
        architectures=["A"], eos_token_ids=[2], pad_token_id=3, bos_token_id=1,
        max_req_input_len=5, default_sampling_params_json="{}")
    yield vllm.GetServerInfoResponse(
        active_requests=1, is_paused=True, last_receive_timestamp=1.5, uptime_seconds=2.5,
        server_type="s", data_parallel_size=1, shm_namespace_id="x:1", block_size=16,
        model_dtype="d", max_num_seqs=4)
    load = vllm.SchedulerLoad(
        dp_rank=1, num_running_reqs=1, num_waiting_reqs=2, num_total_reqs=3, num_used_tokens=4,
        max_total_num_tokens=5, token_usage=.5, gen_throughput=1.5, cache_hit_rate=.25,
        utilization=.75, max_running_requests=6, num_waiting_uncached_tokens=7)
    yield vllm.GetLoadsResponse(timestamp="t", version="v", dp_rank_count=1, loads=[load])
    yield smg.GetTokenizerChunk(data=b"\0\1", sha256="ab")


def infer_request():
    request = triton.ModelInferRequest(
        model_name="m", model_version="1", id="i", raw_input_contents=[b"x"])
    request.parameters["a"].bool_param = True
    request.parameters["b"].int64_param = -1
    request.parameters["c"].string_param = "s"
    request.parameters["d"].double_param = .5
    request.parameters["e"].uint64_param = 9
    tensor = request.inputs.add(name="n", datatype="BYTES", shape=[1, -1])
    tensor.parameters["p"].bool_param = True
    tensor.contents.MergeFrom(triton.InferTensorContents(
        bool_contents=[True], int_contents=[-1], int64_contents=[-2], uint_contents=[3],
        uint64_contents=[4], fp32_contents=[.5], fp64_contents=[.25], bytes_contents=[b"z"]))
    request.outputs.add(name="o").parameters["q"].int64_param = 1
    return request


def infer_response():
    response = triton.ModelInferResponse(
        model_name="m", model_version="1", id="i", raw_output_contents=[b"y"])
    response.parameters["triton_final_response"].bool_param = True
    tensor = response.outputs.add(name="n", datatype="INT32", shape=[2])
    tensor.parameters["p"].bool_param = True
    tensor.contents.int_contents.append(1)
    return response


def triton_messages():
    yield infer_request()
    yield infer_response()
    yield triton.ModelStreamInferResponse(error_message="e", infer_response=infer_response())
    yield triton.ServerLiveResponse(live=True)
    yield triton.ServerReadyResponse(ready=True)
    yield triton.ModelReadyRequest(name="a", version="b")
    yield triton.ModelReadyResponse(ready=True)
    yield triton.ServerMetadataResponse(name="a", version="b", extensions=["c"])
    yield triton.ModelMetadataRequest(name="a", version="b")
    yield triton.ModelMetadataResponse(
        name="a", versions=["1"], platform="p",
        inputs=[{"name": "i", "datatype": "BYTES", "shape": [1]}],
        outputs=[{"name": "o", "datatype": "FP32", "shape": [-1]}])
    yield triton.ModelConfigRequest(name="a", version="b")
    outputs = [config.ModelOutput(name="o", data_type=kind, dims=[-1])
               for kind in (config.TYPE_INT32, config.TYPE_FP32, config.TYPE_UINT32,
                            config.TYPE_BOOL)]
    yield triton.ModelConfigResponse(config=config.ModelConfig(
        name="a", platform="p", max_batch_size=1, backend="b", output=outputs,
        input=[config.ModelInput(name="i", data_type=config.TYPE_STRING, dims=[1], optional=True)],
        model_transaction_policy=config.ModelTransactionPolicy(decoupled=True)))
    yield triton.ModelStatisticsRequest(name="a", version="b")
    count = triton.StatisticDuration(count=1, ns=2)
    yield triton.ModelStatisticsResponse(model_stats=[triton.ModelStatistics(
        name="a", version="b", inference_count=3, execution_count=4,
        inference_stats=triton.InferStatistics(
            success=count, fail=count, queue=count, compute_infer=count))])
    yield triton.RepositoryIndexRequest(repository_name="r", ready=True)
    yield triton.RepositoryIndexResponse(
        models=[{"name": "a", "version": "b", "state": "s", "reason": "r"}])


def main():
    lines = []
    for message in (*vllm_requests(), *vllm_answers(), *triton_messages()):
        encoded = message.SerializeToString(deterministic=True).hex()
        lines.append(json.dumps([message.DESCRIPTOR.full_name, encoded]))
    GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
