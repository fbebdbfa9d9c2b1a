vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --gpu-memory-utilization 0.9 --max-model-len 8192 --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'
vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --gpu-memory-utilization 0.9 --max-model-len 8192 --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'
