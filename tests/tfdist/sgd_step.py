"""Text of a step that programs of several tests take: SGD of the variable ``weights`` to a target of each rank."""

from __future__ import annotations

STEP = """
optimizer = tf.keras.optimizers.SGD(0.5)

@tf.function
def step(target):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((weights - target) ** 2) / 2
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
"""
