package org.edgedec;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.File;
import org.junit.jupiter.api.Test;

class FromJavaTest {
    @Test
    void generates() {
        File nano = new File(System.getProperty("edgedec.nano"));
        StringBuilder text = new StringBuilder();
        try (Model model = Edgedec.open(nano, new OpenOptions("ort", 1, null, false, true));
                Session session = model.session()) {
            GenerateOptions options = new GenerateOptions(8);
            Stats stats = session.generateBlocking("Once upon a time", options, token -> {
                text.append(token.getText());
                return true;
            });
            assertEquals(8, stats.getGenerated());
        }
        assertEquals(", there was a little girl named Lily", text.toString());
    }
}
