package org.edgedec;

import org.junit.jupiter.api.Test;

/** The block of docs/android.md, word for word; tests/readme/test_other_blocks.py compares them. */
class PageInJavaTest {
    private static class File extends java.io.File {
        File(String ignored) {
            super(System.getProperty("edgedec.nano"));
        }
    }

    @Test
    void thePagesProgramRuns() {
        try (Model model = Edgedec.open(new File("nano")); Session session = model.session()) {
            session.generateBlocking("Once upon a time", new GenerateOptions(60), token -> { System.out.print(token.getText()); return true; });
        }
    }
}
