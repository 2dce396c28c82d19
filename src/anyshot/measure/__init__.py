"""From features and a plan of episodes to recalls, intervals and sensitivities."""
