"""Ask the models, and write down what they answer."""
