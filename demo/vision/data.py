"""scikit-learn's bundled handwritten digits, 8 x 8 pixels in 17 grey levels, as folders of PNG images."""

from pathlib import Path

from demo.runner import results

FOLDER = "data"
COUNTS = {"train": 300, "validation": 700}
SPLIT_SEED = 0  # one split for all runs
PACKAGES = ("scikit-learn", "numpy", "pillow")


def write(folder: Path) -> None:
    """Writes the images, unless they exist, as folder/{train,validation}/<digit>/<number in scikit-learn's set>.png.

    `folder` exists with all of them or not at all.
    """
    key = results.key_of([Path(__file__)], PACKAGES)
    if results.finished(folder, key) is not None:
        return
    import numpy
    from PIL import Image
    from sklearn.datasets import load_digits

    from demo.vision.settings import IMAGE_SIZE

    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(numpy.uint8)
    new = results.empty(results.unfinished(folder))
    for part, indices in split(digits.target).items():
        for digit in set(digits.target):
            (new / part / str(digit)).mkdir(parents=True)
        for index in indices:
            image = Image.fromarray(images[index]).resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)
            image.convert("RGB").save(new / part / str(digits.target[index]) / f"{index:04d}.png")
    results.finish(new, key, counts=COUNTS)
    results.replace(folder)


def split(targets) -> dict:
    """The indices of the two parts; both have every class in the same proportion."""
    from sklearn.model_selection import train_test_split

    train, validation = train_test_split(
        range(len(targets)),
        train_size=COUNTS["train"],
        test_size=COUNTS["validation"],
        stratify=targets,
        random_state=SPLIT_SEED,
    )
    return {"train": train, "validation": validation}
