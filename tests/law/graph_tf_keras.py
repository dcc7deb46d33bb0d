"""TensorFlow 1 programs: tf_keras in its own session."""

import tensorflow as tf
from tensorflow import keras

from tests.law.data import arrays, batches, rows
from tests.law.fit_tf_keras import dense, fitted, values, with_an_embedding


def legacy_adam_in_a_session(rank, size):
    """An embedding with the legacy Adam."""
    return fitted(with_an_embedding(), keras.optimizers.legacy.Adam(0.05, epsilon=1e-3), rank, size, True)


def legacy_momentum_in_a_session(rank, size):
    """A legacy optimizer with global_clipnorm."""
    optimizer = keras.optimizers.legacy.SGD(0.1, momentum=0.9, global_clipnorm=0.05)
    return fitted(dense(), optimizer, rank, size)


def fit_with_an_optimizer_of_tensorflow_1(rank, size):
    """An embedding, and compile with an optimizer of TensorFlow 1, which Keras wraps."""
    return fitted(with_an_embedding(), tf.compat.v1.train.MomentumOptimizer(0.1, 0.9), rank, size, True)


def fit_of_a_dataset_in_a_session(rank, size):
    """fit of a tf.data.Dataset, which is fed as tensors."""
    x, y, _ = arrays(rank, size, 4)
    model = dense()
    model.compile(keras.optimizers.legacy.SGD(0.1, momentum=0.9, clipnorm=0.05), "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(rows(size)), verbose=0)
    return values(model, model.optimizer)


def rank_0_uses_its_model_before(rank, size):
    """train_on_batch, after rank 0 alone has used its model and set weights; it evaluates alone at the end."""
    data = batches(rank, size)
    model = dense()
    model.compile(keras.optimizers.legacy.Adam(0.05, epsilon=1e-3), "mse")
    if rank == 0:
        model.predict(data[0][0], verbose=0)
        model.set_weights([0.5 * value for value in model.get_weights()])
    for x, y, _ in data:
        model.train_on_batch(x, y)
    if rank == 0:
        model.evaluate(*data[0][:2], verbose=0)
    return values(model, model.optimizer)
