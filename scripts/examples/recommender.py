#!/usr/bin/env python3
"""A recommender: two towers with large embeddings, in which ids of any kind are hashed to rows.

A step reads a few hundred rows of each table. Their gradients are slices, and the ranks exchange only these rows. As
negatives of an item serve the other items of the rank's own batch, as in any data-parallel training.
"""

import keras
import numpy as np
import tensorflow as tf

import tfdist

USERS, ITEMS, ROWS, SIZE, BATCH = 2_000, 500, 50_000, 32, 64

random = np.random.default_rng(0)
taste = random.integers(50, size=USERS)  # a user buys items of one kind
user = random.integers(USERS, size=20_000)
item = taste[user] * (ITEMS // 50) + random.integers(ITEMS // 50, size=len(user))
names = np.char.add("user-", user.astype(str)), np.char.add("item-", item.astype(str))


def tower(seed: int) -> keras.Sequential:
    """Return a model from hashed ids to vectors."""
    rows = keras.layers.Embedding(
        ROWS, SIZE, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1, seed=seed)
    )
    return keras.Sequential([rows, keras.layers.Dense(SIZE, use_bias=False)])


@tf.function
def step(users: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
    """Make the items of a batch more probable for their users than the other items of the batch."""
    with tf.GradientTape() as tape:
        logits = tf.matmul(user_tower(users), item_tower(items), transpose_b=True)
        same = tf.cast(items[:, None] == items[None, :], tf.float32) - tf.eye(len(items))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(len(items)), logits - 1e9 * same))
    weights = user_tower.trainable_variables + item_tower.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


hashed = keras.layers.Hashing(ROWS)
user_tower, item_tower = tower(1), tower(2)
optimizer = keras.optimizers.Adam(0.02)
data = tf.data.Dataset.from_tensor_slices(tuple(map(np.array, map(hashed, names))))
data = tfdist.shard(data).shuffle(len(user), seed=1).batch(BATCH, drop_remainder=True)
means = []
for _ in range(4):
    losses = [step(users, items) for users, items in data]
    means.append(float(tfdist.all_reduce(tf.reduce_mean(losses))))
if tfdist.rank() == 0:
    print(f"loss {means[0]:.4f} -> {means[-1]:.4f}")
