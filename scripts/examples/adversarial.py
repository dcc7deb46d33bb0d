#!/usr/bin/env python3
"""Two models trained in turn, as in a GAN: a generator learns the mean and the width of a normal distribution."""

import keras
import tensorflow as tf

import tfdist

tf.random.set_seed(tfdist.rank())  # the ranks draw different samples
generator = keras.Sequential([keras.Input([4]), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
critic = keras.Sequential([keras.Input([1]), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
of_generator, of_critic = keras.optimizers.Adam(1e-3, beta_1=0.5), keras.optimizers.Adam(2e-3, beta_1=0.5)


@tf.function
def step():
    """Update each model once."""
    real = tf.random.normal([64, 1], 3.0, 0.5)
    with tf.GradientTape() as tape:
        fake = generator(tf.random.normal([64, 4]))
        loss = tf.reduce_mean(tf.nn.softplus(-critic(real)) + tf.nn.softplus(critic(fake)))
    of_critic.apply_gradients(zip(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.softplus(-critic(generator(tf.random.normal([64, 4])))))
    of_generator.apply_gradients(zip(tape.gradient(loss, generator.trainable_variables), generator.trainable_variables))


def distance():
    """Return the distance of the generated mean from the real mean, which is 3."""
    return abs(float(tf.reduce_mean(generator(tf.random.normal([4096, 4])))) - 3.0)


before = distance()
for _ in range(600):
    step()
after = distance()
if tfdist.rank() == 0:
    print(f"loss {before:.4f} -> {after:.4f}")
