"""Programs of Keras: options of optimizers, and callbacks."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

from tests.law.data import arrays, rows


def fitted(rank, size, optimizer, model=None, epochs=2, **options):
    x, y, _ = arrays(rank, size, 4)
    model = model or keras.Sequential([keras.Input([5]), layers.Dense(7, "tanh"), layers.Dense(3)])
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=rows(size), epochs=epochs, shuffle=False, verbose=0, **options)
    return {str(n): w for n, w in enumerate(model.get_weights())}


def clipnorm(rank, size):
    """clipnorm: each gradient is clipped by its own norm."""
    return fitted(rank, size, keras.optimizers.Adam(0.05, epsilon=1e-3, clipnorm=0.05))


def global_clipnorm(rank, size):
    """global_clipnorm: all gradients are clipped by their global norm."""
    return fitted(rank, size, keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05))


def clipvalue(rank, size):
    """clipvalue: each entry of a gradient is clipped."""
    return fitted(rank, size, keras.optimizers.SGD(0.5, clipvalue=0.02))


def moving_average_of_weights(rank, size):
    """use_ema: the moving average overwrites the weights."""
    return fitted(rank, size, keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3))


def weight_decay(rank, size):
    """AdamW, with biases excluded from the decay."""
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.1, epsilon=1e-3)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return fitted(rank, size, optimizer)


def learning_rate_schedule(rank, size):
    """A schedule as the learning rate of the optimizer."""
    schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=8, warmup_target=0.3, warmup_steps=3)
    return fitted(rank, size, keras.optimizers.SGD(schedule))


def early_stopping(rank, size):
    """EarlyStopping, which restores the best weights."""
    x, y, _ = arrays(rank, size, 4)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    optimizer = keras.optimizers.SGD(1.2, momentum=0.9)
    return fitted(rank, size, optimizer, epochs=6, callbacks=[stop], validation_data=(x[::4], -y[::4]))


def reduced_on_plateau(rank, size):
    """ReduceLROnPlateau."""
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.3, patience=0, min_delta=0.05)
    return fitted(rank, size, keras.optimizers.SGD(0.3), epochs=5, callbacks=[plateau])


def learning_rate_scheduler(rank, size):
    """LearningRateScheduler, and a custom callback that changes a weight."""

    class Normed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel / np.linalg.norm(kernel))

    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)
    return fitted(rank, size, keras.optimizers.SGD(0.3), epochs=3, callbacks=[schedule, Normed()])


def fitted_again(rank, size):
    """fit twice: before the second time weights are set, a layer is frozen, and the model is compiled again."""
    x, y, _ = arrays(rank, size, 4)
    model = keras.Sequential([keras.Input([5]), layers.Dense(7, "tanh"), layers.Dense(3)])
    fitted(rank, size, keras.optimizers.Adam(0.05, epsilon=1e-3), model)
    model.layers[0].trainable = False
    model.set_weights([0.9 * w for w in model.get_weights()])
    return fitted(rank, size, keras.optimizers.SGD(0.1), model)
