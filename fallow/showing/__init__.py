"""Results as words, tables, plots and Markdown: it decides nothing."""
