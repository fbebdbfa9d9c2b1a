vllm serve a --port "x
y"
vllm serve "b
c" --kv-transfer-config x
