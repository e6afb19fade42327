# The folder of your model. This file is part of the stage's cache key: another folder is another base.
cp -rL /models/my-qwen3 "$MCPRL_OUTPUT_POLICY"
