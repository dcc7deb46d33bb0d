"""Programs of Keras 3 alone: what Keras 2 has not."""

import keras

from tests.law.data import arrays, rows
from tests.law.fit import two_layers, weights_of
from tests.law.fit_optimizers import fitted


def from_a_py_dataset(rank, size):
    """A keras.utils.PyDataset."""
    x, y, _ = arrays(rank, size, 4)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(x) // rows(size)

        def __getitem__(self, index):
            part = slice(index * rows(size), (index + 1) * rows(size))
            return x[part], y[part]

    model = two_layers()
    model.compile(keras.optimizers.Adam(0.05, epsilon=1e-3), "mse")
    model.fit(Batches(), epochs=2, shuffle=False, verbose=0)
    return weights_of(model)


def gradients_accumulated_by_keras(rank, size):
    """gradient_accumulation_steps, with clipping."""
    return fitted(rank, size, keras.optimizers.SGD(0.3, momentum=0.9, clipnorm=0.05, gradient_accumulation_steps=2))


def loss_scale_optimizer(rank, size):
    """LossScaleOptimizer around another one."""
    inner = keras.optimizers.SGD(0.3, momentum=0.9, global_clipnorm=0.1)
    return fitted(rank, size, keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0))


def optimizer_with_update_step(rank, size):
    """A subclass of keras.optimizers.Optimizer with an update_step."""

    class Descent(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            self.assign_sub(
                variable, keras.ops.cast(learning_rate, variable.dtype) * keras.ops.clip(gradient, -0.03, 0.03)
            )

    return fitted(rank, size, Descent(learning_rate=0.3))
