"""One turn or text in any dialect: prompt, requests, and answers as they stream."""
