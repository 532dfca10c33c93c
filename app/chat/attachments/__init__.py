"""Files of a person → attachments of a message → what a model gets. Independent of screens, models and the store.

    read = read_file(path, "photo.png")                      reader: any file, of any kind
    read = read_file(path, "paper.pdf", PageChoice(3, 5))    parsing: also of "paper.pdf#3-5", "paper.pdf#pictures"
    read = read_data(data, "clipboard.png")                  the same for bytes that come from no file
    read.attachment.label                                    "photo.png, 640 × 480, 120 kB"
    store.files.keep(read.contents)                          app.chat.store: before the message is added
    split_text(read.attachment.content, 8_000)               prompt: parts at borders of pages and paragraphs
    compose_prompt(question, attachments)                    prompt: the text of the message; its media stand before it
    store.files.parts(media_of(attachments))                 the pictures and sounds, as `Message.media` has them

Reading takes up to seconds, so that an event loop does it in a thread. Parsers of documents, pictures and sounds run
in a child process with limits on time and memory: no file can end or block the caller.
"""
