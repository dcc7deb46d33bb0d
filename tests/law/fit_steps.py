"""Keras 3 programs: models with a custom training step or loss, and losses over a whole batch."""

import keras
import tensorflow as tf
from keras import layers

from tests.law.data import arrays, rows


def _weights(*models):
    return {v.path: v.numpy() for model in models for v in model.trainable_variables}


class Adversaries(keras.Model):
    """A generator and a critic, each with an optimizer. The generator gets labels in place of noise."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input([3]), layers.Dense(6, "tanh"), layers.Dense(5)], name="generator"
        )
        self.critic = keras.Sequential([keras.Input([5]), layers.Dense(6, "tanh"), layers.Dense(1)], name="critic")

    def compile(self, of_critic, of_generator):
        super().compile()
        self.of_critic, self.of_generator = of_critic, of_generator
        self.loss_of_critic = keras.metrics.Mean(name="loss_of_critic")

    @property
    def metrics(self):
        return [self.loss_of_critic]

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.softplus(-self.critic(real)) + tf.nn.softplus(self.critic(self.generator(noise)))
            )
        gradients = tape.gradient(loss, self.critic.trainable_weights)
        self.of_critic.apply_gradients(zip(gradients, self.critic.trainable_weights))
        with tf.GradientTape() as tape:
            other = tf.reduce_mean(tf.nn.softplus(-self.critic(self.generator(noise))))
        gradients = tape.gradient(other, self.generator.trainable_weights)
        self.of_generator.apply_gradients(zip(gradients, self.generator.trainable_weights))
        self.loss_of_critic.update_state(loss)
        return {"loss": self.loss_of_critic.result()}


def adversaries(rank, size):
    """train_step with two optimizers for a generator and a critic."""
    x, y, _ = arrays(rank, size, 4)
    model = Adversaries()
    model.compile(keras.optimizers.Adam(0.02, epsilon=1e-3), keras.optimizers.Adam(0.02, epsilon=1e-3))
    model.fit(x, y, batch_size=rows(size), epochs=2, shuffle=False, verbose=0)
    return _weights(model.generator, model.critic)


def distilled(rank, size):
    """A custom compute_loss with a teacher that is not trained."""
    x, y, _ = arrays(rank, size, 4)
    teacher = keras.Sequential([keras.Input([5]), layers.Dense(3, name="teacher")])
    teacher.trainable = False

    class Student(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            soft = keras.ops.mean(keras.ops.square(y_pred - teacher(x)))
            return 0.5 * soft + super().compute_loss(x, y, y_pred, sample_weight, training)

    model = Student([keras.Input([5]), layers.Dense(6, "tanh", name="in"), layers.Dense(3, name="out")])
    model.compile(keras.optimizers.SGD(0.2), "mse")
    model.fit(x, y, batch_size=rows(size), epochs=2, shuffle=False, verbose=0)
    return _weights(model)


def spectral_normalization(rank, size):
    """SpectralNormalization, which has a vector with random initial values that is no trainable weight."""
    x, y, _ = arrays(rank, size, 4)
    model = keras.Sequential([keras.Input([5]), layers.SpectralNormalization(layers.Dense(6, "tanh", name="in"))])
    model.add(layers.Dense(3, name="out"))
    model.compile(keras.optimizers.SGD(0.2), "mse")
    model.fit(x, y, batch_size=rows(size), epochs=2, shuffle=False, verbose=0)
    return _weights(model)


def contrastive(rank, size):
    """A contrastive loss: each sample is distinguished from all others of its batch.

    Differs: a rank's samples are distinguished from those of its own part of the batch.
    """
    x, _, _ = arrays(rank, size, 4)

    class Contrast(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            other = self(x * 0.9 + 0.1)
            logits = keras.ops.matmul(keras.ops.normalize(y_pred), keras.ops.transpose(keras.ops.normalize(other)))
            labels = keras.ops.arange(keras.ops.shape(x)[0])
            losses = keras.losses.sparse_categorical_crossentropy(labels, 5.0 * logits, from_logits=True)
            return keras.ops.mean(losses)

    model = Contrast([keras.Input([5]), layers.Dense(4, name="out")])
    model.compile(keras.optimizers.SGD(0.2))
    model.fit(x, batch_size=rows(size), epochs=2, shuffle=False, verbose=0)
    return _weights(model)
