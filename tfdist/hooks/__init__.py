"""Where TensorFlow, Keras and Python call us: one module a framework point, and one table to install and undo."""
