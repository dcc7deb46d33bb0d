"""TensorFlow 1 programs: ways to start, feed, restore and read sessions."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2

from tests.law.data import arrays, batches, rows


def _model():
    x = tf.placeholder(tf.float32, [None, 5], name="x")
    y = tf.placeholder(tf.float32, [None, 3], name="y")
    return x, y, _loss(x, y)


def _loss(x, y):
    w = tf.get_variable("w", [5, 3])
    b = tf.get_variable("b", [3], initializer=tf.random_normal_initializer())
    return tf.reduce_mean((tf.tanh(tf.matmul(x, w) + b) - y) ** 2)


def _values(session):
    return {v.op.name: session.run(v) for v in tf.trainable_variables()}


def callable_of_a_session(rank, size):
    """session.make_callable, fed by position."""
    x, y, loss = _model()
    step = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        train = session.make_callable([step, loss], feed_list=[x, y])
        for features, labels, _ in batches(rank, size):
            train(features, labels)
        return _values(session)


def callable_from_options(rank, size):
    """session._make_callable_from_options, as Keras makes its callables."""
    x, y, loss = _model()
    step = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss)
    options = config_pb2.CallableOptions(feed=[x.name, y.name], fetch=[loss.name], target=[step.name])
    with tf.Session() as session:
        session.run([v.initializer for v in tf.global_variables()])
        train = session._make_callable_from_options(options)
        for features, labels, _ in batches(rank, size):
            train(features, labels)
        return _values(session)


class _Values(tf.train.SessionRunHook):
    """Reads the variables at the end of a monitored session."""

    def end(self, session):
        self.found = _values(session)


def scaffold_and_hooks(rank, size):
    """Only rank 0 has a folder and a Scaffold whose init_fn sets values; hooks watch the loss and end the training."""
    x, y, loss = _model()
    step = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss, tf.train.get_or_create_global_step())

    def start(scaffold, session):
        if rank == 0:
            for v in tf.trainable_variables():
                v.load(np.full(v.shape.as_list(), 0.3, "float32"), session)

    values = _Values()
    hooks = [tf.train.StopAtStepHook(last_step=4), tf.train.NanTensorHook(loss), values]
    data = iter(batches(rank, size))
    with tempfile.TemporaryDirectory() as folder:
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder if rank == 0 else None,
            scaffold=tf.train.Scaffold(init_fn=start, saver=tf.train.Saver(max_to_keep=1)),
            save_checkpoint_steps=2,
            hooks=hooks,
        ) as session:
            while not session.should_stop():
                features, labels, _ = next(data)
                session.run({"train": step}, {x: features, y: labels})
        assert (tf.train.latest_checkpoint(folder) is not None) == (rank == 0)
    return values.found


def step_functions(rank, size):
    """SingularMonitoredSession.run_step_fn."""
    x, y, loss = _model()
    step = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    values, data = _Values(), iter(batches(rank, size))

    def one(step_context):
        features, labels, _ = next(data)
        step_context.session.run(step, {x: features, y: labels})

    with tf.train.SingularMonitoredSession(hooks=[values]) as session:
        for _ in range(5):
            session.run_step_fn(one)
    return values.found


def interactive_session(rank, size):
    """InteractiveSession, with run and eval of operations and tensors."""
    x, y, loss = _model()
    step = tf.train.GradientDescentOptimizer(0.3).minimize(loss)
    session = tf.InteractiveSession()
    tf.global_variables_initializer().run()
    for number, (features, labels, _) in enumerate(batches(rank, size)):
        step.run(feed_dict={x: features, y: labels})
        if rank == 0 and number % 2 == 0:
            loss.eval(feed_dict={x: features, y: labels})
    values = {v.op.name: v.eval() for v in tf.trainable_variables()}
    session.close()
    return values


def values_loaded_after_init(rank, size):
    """Values are loaded by v.load after the initializer."""
    x, y, loss = _model()
    step = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for v in tf.trainable_variables():
            v.load(np.random.randn(*v.shape.as_list()).astype("float32"), session)
        for features, labels, _ in batches(rank, size):
            session.run(step, {x: features, y: labels})
        return _values(session)


def restored_on_rank_0(rank, size):
    """Only rank 0 has a checkpoint, and restores it after the initializer."""
    x, y, loss = _model()
    step = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss)
    saver = tf.train.Saver(tf.trainable_variables())
    with tempfile.TemporaryDirectory() as folder, tf.Session() as session:
        session.run(tf.global_variables_initializer())
        if rank == 0:
            with tf.Graph().as_default(), tf.Session() as other:
                for v, shape in (("w", [5, 3]), ("b", [3])):
                    tf.get_variable(v, shape, initializer=tf.constant_initializer(0.3))
                other.run(tf.global_variables_initializer())
                path = tf.train.Saver().save(other, os.path.join(folder, "model"))
            saver.restore(session, path)
        for features, labels, _ in batches(rank, size):
            session.run(step, {x: features, y: labels})
        return _values(session)


def resumed_from_a_checkpoint(rank, size):
    """Each rank saves in the middle, restores in a new session, and continues to train."""
    x, y, loss = _model()
    step = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    saver = tf.train.Saver()
    data = batches(rank, size, 6)
    with tempfile.TemporaryDirectory() as folder:
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for features, labels, _ in data[:3]:
                session.run(step, {x: features, y: labels})
            path = saver.save(session, os.path.join(folder, "model"), global_step=3)
        with tf.Session() as session:
            saver.restore(session, path)
            for features, labels, _ in data[3:]:
                session.run(step, {x: features, y: labels})
            return _values(session)


def initialized_in_parts(rank, size):
    """Weights are initialized first, and the uninitialized variables of the optimizer later."""
    x, y, loss = _model()
    with tf.Session() as session:
        session.run(tf.variables_initializer(tf.trainable_variables()))
        step = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss)
        missing = set(session.run(tf.report_uninitialized_variables()))
        session.run(tf.variables_initializer([v for v in tf.global_variables() if v.op.name.encode() in missing]))
        for features, labels, _ in batches(rank, size):
            session.run(step, {x: features, y: labels})
        return _values(session)


def dataset_iterator(rank, size):
    """Batches from an initializable iterator of a dataset."""
    features, labels, _ = arrays(rank, size)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(rows(size)).prefetch(1)
    iterator = tf.data.make_initializable_iterator(dataset)
    step = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(_loss(*iterator.get_next()))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(iterator.initializer)
            while True:
                try:
                    session.run(step)
                except tf.errors.OutOfRangeError:
                    break
        return _values(session)


def supervisor(rank, size):
    """A managed session of tf.train.Supervisor."""
    x, y, loss = _model()
    step = tf.train.GradientDescentOptimizer(0.3).minimize(loss, global_step=tf.train.get_or_create_global_step())
    manager = tf.train.Supervisor(logdir=None, summary_op=None)
    with manager.managed_session() as session:
        for features, labels, _ in batches(rank, size):
            session.run(step, {x: features, y: labels})
        return {v.op.name: session.run(v) for v in tf.trainable_variables()}


def partitioned_variable(rank, size):
    """A variable in two parts, and summaries of gradients and norms."""
    x = tf.placeholder(tf.float32, [None, 5])
    y = tf.placeholder(tf.float32, [None, 3])
    with tf.variable_scope("model", partitioner=tf.fixed_size_partitioner(2)):
        w = tf.get_variable("w", [5, 3])
    loss = tf.reduce_mean((tf.matmul(x, tf.convert_to_tensor(w)) - y) ** 2)
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    pairs = optimizer.compute_gradients(loss)
    for gradient, v in pairs:
        tf.summary.histogram(v.op.name, gradient)
    pairs = [(tf.clip_by_norm(g, 0.2), v) for g, v in pairs]
    step, summaries = optimizer.apply_gradients(pairs), tf.summary.merge_all()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for features, labels, _ in batches(rank, size):
            session.run([step, summaries], {x: features, y: labels})
        return _values(session)
