"""The Delta sink: a table that gets each epoch in one commit."""
