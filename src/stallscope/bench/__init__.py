"""How variants are measured against each other: two instruments, one rule of what is said."""
