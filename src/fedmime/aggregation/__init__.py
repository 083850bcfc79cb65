"""What happens to messages on their way: so far, counting them."""
