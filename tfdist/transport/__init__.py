"""The ranks as others see them: channels, groups, nodes; agreement; and the watch over those that do not come."""
