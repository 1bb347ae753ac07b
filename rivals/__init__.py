"""ERA beside what people use instead, with the same number of tried settings for each: docs/rivals/."""
