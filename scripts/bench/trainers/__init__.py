"""The speed of a Hugging Face and a Lightning Trainer under an exported plan, beside what the plan promised."""
