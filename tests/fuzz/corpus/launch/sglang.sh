python -m sglang.launch_server --model-path org/model --tp 2 --disaggregation-mode prefill --mem-fraction-static 0.85 --page-size 16
python -m sglang.launch_server --model-path org/model --tp 2 --disaggregation-mode decode --mem-fraction-static 0.85 --page-size 16
