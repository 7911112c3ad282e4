"""Models of texts, and the embeddings that they give: the packaged one, folders of others, fine-tuned ones."""
