"""Objects of S3: what a store heeds, copies of any size, and names of our own that leave no version behind."""
