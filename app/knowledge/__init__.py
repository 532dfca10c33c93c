"""Folders as knowledge: their files, split into passages, found by words and by meaning. Independent of screens, engine
and service.

    with KnowledgeStore(data_dir) as store:                  store: SQLite, for one thread
        folder = store.add_folder(path)
        for progress in read_folder(store, folder): ...      reading: what is new or changed, in child processes
        async for progress in embed_passages(store, ...): ...    embedding: vectors of passages that have none
    found = await search(data_dir, "words", models)          search: words and vectors, fused
"""
