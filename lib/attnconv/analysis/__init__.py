"""What trained networks do: heads in numbers, layers swapped, tables of results, and claims with their verdicts."""
