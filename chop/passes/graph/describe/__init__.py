"""What nodes of a graph are, take and give: shared by analyses and transforms, below both."""
