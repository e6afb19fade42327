"""Reference numbers for `src/stage/sft`: TRL's SFTTrainer with PEFT's LoRA on the tiny Qwen3 of `model_parity.py`.

Writes fixtures/sft.json:

    sequences       token ids and assistant masks of three conversations; the first begins with a marked token, which has
                    no token before it and so no loss
    labels          what TRL's collator makes of them (-100: no loss), padded
    steps           per optimizer step of `SFTTrainer.train()`, all sequences in one step: loss, norm of the gradient before
                    clipping, learning rate (linear decay)
    boundary        a conversation with a tool call, in TRL's training template for Qwen3: ids, assistant mask, and the
                    messages that gave them, for `assistant_only_loss`

Needs torch, transformers, peft, trl and datasets.
"""

import json
import pathlib
import tempfile

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE / "fixtures"
CHAT = HERE / "chat" / "qwen3"


def sequences():
    generator = torch.Generator().manual_seed(41)
    made = []
    for length, prompt in [(14, 0), (23, 9), (18, 6)]:
        ids = torch.randint(0, 160, (length,), generator=generator).tolist()
        # Two turns of the assistant, with a result in between.
        mask = [int(at >= prompt and not prompt + 4 <= at < prompt + 7) for at in range(length)]
        made.append({"input_ids": ids, "assistant_masks": mask})
    return made


def train(rows, steps):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "qwen3-tiny", dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, FIXTURES / "qwen3-tiny-lora", is_trainable=True)
    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    # Padding is masked, but has to be in the model's vocabulary.
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=len(rows),
            num_train_epochs=steps,
            learning_rate=1e-3,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            logging_steps=1,
            max_length=None,
            gradient_checkpointing=False,
            bf16=False,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        )
        trainer = SFTTrainer(
            model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        labels = trainer.data_collator(list(trainer.train_dataset))["labels"].tolist()
    return labels, [{key: float(entry[key]) for key in ("loss", "grad_norm", "learning_rate")} for entry in logged]


def boundary():
    """The assistant's tokens of a conversation, as `assistant_only_loss` marks them."""
    from trl.chat_template_utils import get_training_chat_template

    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}
    end = {"type": "function", "function": {"name": "complete_task", "arguments": {"answer": "7"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "here"},
        {"role": "assistant", "content": "", "tool_calls": [end]},
    ]
    template = get_training_chat_template(tokenizer)
    found = tokenizer.apply_chat_template(
        messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    return {"messages": messages, "tokens": found["input_ids"], "mask": found["assistant_masks"]}


def main():
    torch.use_deterministic_algorithms(True)
    rows = sequences()
    labels, steps = train(rows, 6)
    found = {"sequences": rows, "labels": labels, "steps": steps, "boundary": boundary()}
    (FIXTURES / "sft.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


main()
